"""How a tuning run divides its time: among phases and among problems, and a record of where it went.

A run spends its time where the networks do.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from autotune.core import Deadline, timeline
from autotune.ir import Network, Problem, limit_us
from tuning_db.schema import Device

PREPARATION = "preparation"
"""Before the first phase: imports, and the capture of the networks."""
SEARCH, FINALS, SETTLING = "search", "finals", "settling"
SHARES = {SEARCH: 0.6, FINALS: 0.1, SETTLING: 0.3}
"""Phase -> its share of the time. Settling is the choice of kernels inside the whole network."""


@dataclass(frozen=True)
class PhaseTime:
    """The time of a phase.

    Attributes:
        name: The phase.
        granted: Seconds that it was allowed to take; infinite without a budget.
        spent: Seconds that it took.
    """

    name: str
    granted: float
    spent: float


class Phases:
    """The phases of one run, one after the other.

    A phase that begins gets its part of the time that is left, which it shares with the phases after it.

    Args:
        deadline: The deadline of the run.
        names: The phases in their order; keys of SHARES.

    Attributes:
        current: The deadline of the phase that has begun; the run's before the first one.
    """

    def __init__(self, deadline: Deadline, names: Sequence[str]) -> None:
        self._deadline, self._left = deadline, list(names)
        self.current = deadline
        self._begun: list[tuple[str, float, float]] = []  # name, seconds granted, seconds since the start of the run

    def begin(self, name: str) -> Deadline:
        """Begin a phase, leaving out those before it, and return its deadline."""
        self._left = self._left[self._left.index(name) :]
        self.current = self._deadline.share(SHARES[name] / sum(SHARES[each] for each in self._left))
        self._begun.append((name, self.current.left, self._deadline.elapsed))
        self._left = self._left[1:]
        timeline.switch(timeline.Lane.PHASES, name)
        return self.current

    def waiting(self, share: float) -> Deadline:
        """Return the deadline of something in the current phase that may take a share of the whole run's time."""
        return self.current.within(share * self._deadline.seconds)

    def times(self) -> list[PhaseTime]:
        """Return the times of the phases that have begun, the last one up to now."""
        if math.isinf(self._deadline.end):
            return []
        ends = [*(since for *_, since in self._begun[1:]), self._deadline.elapsed]
        first = [PhaseTime(PREPARATION, math.inf, self._begun[0][2])] if self._begun else []
        return first + [
            PhaseTime(name, granted, end - since) for (name, granted, since), end in zip(self._begun, ends, strict=True)
        ]


KEPT_SECONDS = 1.0
"""Age up to which `recent` returns weights again: those of 1,000 problems take 20 ms, and they change slowly."""
_FLOPS_PER_US, _BYTES_PER_US = 1e6, 1e4
"""Rates of a typical device, until those of the real one are known; only their ratio matters."""


class LayerWeights:
    """Weights of problems by their times: measured ones where there are any, else the roofline limit.

    A limit is shorter than the time that a kernel reaches, so limits are multiplied by the median of
    measured time / limit over the problems that were measured. The weights of each network add up to 1, so that a small
    batch size counts as much as a large one.

    Args:
        problems: The problems.
        networks: The networks; a problem counts as often as their layers use it. Without any, it counts as often as it
            occurs among the problems.
        best_us: Maps a problem to its best measured time in microseconds, or None.
    """

    def __init__(
        self, problems: Iterable[Problem], networks: Sequence[Network], best_us: Callable[[Problem], float | None]
    ) -> None:
        given = Counter(problems)
        self._problems = list(given)
        used = [Counter(layer.problem for layer in network.all_layers) for network in networks]
        self._counts = [{problem: count[problem] for problem in self._problems if count[problem]} for count in used]
        self._counts = self._counts or [dict(given)]
        self._best_us = best_us
        self._recent: tuple[float, dict[Problem, float]] = -math.inf, {}
        self.set_rates(_FLOPS_PER_US, _BYTES_PER_US)

    def set_device(self, device: Device) -> None:
        """Use the rates of a device for the problems that were not measured."""
        self.set_rates(device.flops_per_us, device.bytes_per_us)

    def set_rates(self, flops_per_us: float, bytes_per_us: float) -> None:
        """Use these rates for the problems that were not measured."""
        self._limits = {problem: limit_us(problem, flops_per_us, bytes_per_us) for problem in self._problems}

    def __call__(self, problem: Problem) -> float:
        """Return the weight of a problem."""
        return self.all()[problem]

    def all(self) -> dict[Problem, float]:
        """Return the weights of all problems."""
        best = {problem: self._best_us(problem) for problem in self._problems}
        ratios = [us / self._limits[problem] for problem, us in best.items() if us and self._limits[problem]]
        ratio = statistics.median(ratios) if ratios else 1.0
        weights = dict.fromkeys(self._problems, 0.0)
        for counts in self._counts:
            times = {
                problem: count * (best[problem] or ratio * self._limits[problem]) for problem, count in counts.items()
            }
            total = sum(times.values()) or 1.0
            for problem, us in times.items():
                weights[problem] += us / total
        return weights

    def recent(self) -> dict[Problem, float]:
        """Return the weights of all problems as they were at most KEPT_SECONDS ago."""
        now = time.monotonic()
        if now - self._recent[0] > KEPT_SECONDS:
            self._recent = now, self.all()
        return self._recent[1]

    def sorted(self) -> list[Problem]:
        """Return the problems, the heaviest first."""
        weights = self.all()
        return sorted(weights, key=lambda problem: -weights[problem])


STEPS = ("search", "emit", "compile", "load", "verify", "time")
"""Phases of a trial. `verify` and `time` use the device; the others use CPU cores, in parallel with it if possible."""
WAIT = "wait for compilers"
"""A device has no work, but compilers have; of several devices the mean."""
IDLE = "wait"
"""In the seconds of a trial: how long its device had no work before it."""
RECORD = "record"
"""Reading and writing the database."""


class TimeBreakdown:
    """Seconds of each phase since its creation.

    Phases run in parallel, so their sum may exceed the total.

    Args:
        devices: Number of devices that verify and time.

    Attributes:
        seconds: Seconds by phase: STEPS, WAIT and RECORD.
        trials: Number of trials.
    """

    def __init__(self, devices: int = 1) -> None:
        self._devices = devices
        self._started = self._since = time.perf_counter()
        self._compilers_busy, self._busy_devices = False, set[int]()
        self.seconds = dict.fromkeys((*STEPS, WAIT, RECORD), 0.0)
        self.trials = 0

    @contextmanager
    def charge(self, step: str) -> Iterator[None]:
        """Add the time that the context's body takes to a phase."""
        started = time.perf_counter()
        try:
            with timeline.span(timeline.Lane.TUNER, step):
                yield
        finally:
            self.seconds[step] += time.perf_counter() - started

    def add(self, seconds: dict[str, float]) -> None:
        """Add times that were taken elsewhere, by phase; unknown phases are ignored."""
        for step, spent in seconds.items():
            if step in self.seconds:
                self.seconds[step] += spent

    def set_busy(self, compilers: bool | None = None, device: bool | None = None, place: int = 0) -> None:
        """State whether the compilers and a device have work from now on; None changes nothing.

        While compilers have work, a device without any waits for them, whatever the tuner itself does meanwhile.

        Args:
            compilers: Whether the compilers have work.
            device: Whether the device has work.
            place: Number of the device.
        """
        now = time.perf_counter()
        if self._compilers_busy:
            self.seconds[WAIT] += (now - self._since) * (1 - len(self._busy_devices) / self._devices)
        self._since = now
        self._compilers_busy = self._compilers_busy if compilers is None else compilers
        if device is not None:
            (self._busy_devices.add if device else self._busy_devices.discard)(place)

    @property
    def total(self) -> float:
        """Return the seconds since the creation."""
        return time.perf_counter() - self._started

    @property
    def overhead(self) -> float:
        """Return the seconds in which a device neither verified nor timed, nor waited for compilers."""
        measuring = (self.seconds["verify"] + self.seconds["time"]) / self._devices
        return max(0.0, self.total - self.seconds[WAIT] - measuring)
