"""Replays a trace: runs a search on recorded results, in simulated time, without compiler or device.

Each kernel takes the compile time that was recorded, on a given number of cores. Each device measures one kernel after
the other, and each problem has its device. The loop is that of a real run (search.py), so that samplers are
compared under its conditions.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.core import Deadline
from autotune.families import Kernel
from autotune.ir import Problem
from autotune.measure import SLOW_FACTOR
from autotune.search import MIN_DEPTH, ConfigTrace, Schedule, SpaceStudy, TuneTrace, create_studies, device_places
from autotune.tuner.search import SearchLoop

MIN_CONFIGS = 8
"""Configs of a problem that may be tried, however small the share."""
NOISE = 0.005
"""Standard deviation of the noise on a time that a study is told, relative to the time. Each seed has its own noise."""


@dataclass(frozen=True)
class ReplayPoint:
    """The state of a problem's search after a trial.

    Attributes:
        seconds: Simulated time since the start.
        tried: Number of configs measured for the problem so far.
        best_us: Best time so far; infinite if all trials failed.
    """

    seconds: float
    tried: int
    best_us: float


@dataclass(frozen=True)
class Replay:
    """One simulated search.

    Attributes:
        curves: For each problem, a point for each of its trials.
        totals: For each problem, the number of configs in its spaces.
        best_us: For each problem, the best time of the trace.
        search_seconds: Real time of asking the studies, and of telling them.
    """

    curves: dict[Problem, list[ReplayPoint]]
    totals: dict[Problem, int]
    best_us: dict[Problem, float]
    search_seconds: float = field(compare=False)

    def excess_after(self, problem: Problem, share: float) -> float:
        """Return best time so far / best time - 1 of a problem, after a share of its configs was tried."""
        limit = max(MIN_CONFIGS, share * self.totals[problem])
        found = [point.best_us for point in self.curves[problem] if point.tried <= limit]
        return found[-1] / self.best_us[problem] - 1 if found else math.inf

    def excess_at(self, seconds: float) -> float:
        """Return sum of the best times so far / sum of the best times - 1, over all problems, at a simulated time."""
        found = [
            next((point.best_us for point in reversed(points) if point.seconds <= seconds), math.inf)
            for points in self.curves.values()
        ]
        return sum(found) / sum(self.best_us.values()) - 1

    def seconds_within(self, excess: float) -> float:
        """Return the simulated time at which the sum of the best times is within a share of its optimum; or infinity.

        Args:
            excess: The share by which the sum may be above the optimum.
        """
        moments = sorted({point.seconds for points in self.curves.values() for point in points})
        reached = bisect_left(moments, True, key=lambda moment: self.excess_at(moment) <= excess)
        return moments[reached] if reached < len(moments) else math.inf

    @property
    def seconds(self) -> float:
        """Return the simulated time of the last trial."""
        return max((points[-1].seconds for points in self.curves.values() if points), default=0.0)

    @property
    def is_timed(self) -> bool:
        """Return whether the search has simulated times; one by another tool has none."""
        return self.seconds > 0

    @property
    def tried(self) -> float:
        """Return the share of all configs that were measured."""
        return sum(len(points) for points in self.curves.values()) / sum(self.totals.values())


def replay(
    trace: TuneTrace,
    name: str,
    seed: int,
    cores: int,
    share: float = 1.0,
    gain: float = 0.0,
    budget: float = 1e9,
    devices: int = 1,
) -> Replay:
    """Search a trace.

    Args:
        trace: The recorded results; what was recorded is the whole space.
        name: Name of the sampler.
        seed: Seed of the samplers and of the noise.
        cores: Number of cores that compile.
        share: Share of a problem's configs that may be tried.
        gain: Expected improvement below which a study rests, as a share of the best time.
        budget: Simulated seconds.
        devices: Number of devices that measure.

    Raises:
        UnknownNameError: There is no sampler of that name.
    """
    studies = create_studies(name, [traced.space for traced in trace.spaces], seed, gain)
    results = _results(trace, studies)
    clock = _Clock()
    compilers, measuring = _Compilers(clock, results, cores), _Devices(clock, studies, results, seed, devices)
    totals = {problem: sum(len(each.results) for each in found) for problem, found in trace.by_problem().items()}
    schedule = Schedule(
        studies,
        trace.target,
        {problem: max(MIN_CONFIGS, int(share * total)) for problem, total in totals.items()},
        num_compilers=cores,
        places=measuring.places,
        num_devices=devices,
        exists=compilers.exists,
        trial_seconds=compilers.trial_seconds,
    )
    SearchLoop(schedule, compilers, measuring, Deadline(budget, clock=lambda: clock.now)).run()
    best_us = trace.best_us()
    curves = {problem: measuring.curves.get(problem, []) for problem in best_us}
    return Replay(curves, totals, best_us, compilers.search_seconds + measuring.search_seconds)


_Results = dict[Kernel, list[tuple[SpaceStudy, ConfigTrace]]]
"""Kernel -> its recorded results, with the studies that they are told."""


def _results(trace: TuneTrace, studies: Sequence[SpaceStudy]) -> _Results:
    results: _Results = {}
    for traced, study in zip(trace.spaces, studies, strict=True):
        for config, result in zip(traced.space.configs, traced.results, strict=True):
            results.setdefault(traced.space.kernel(config, trace.target), []).append((study, result))
    return results


@dataclass
class _Clock:
    """The simulated time in seconds."""

    now: float = 0.0


class _Compilers:
    """The compilers of a trace; implements search.Compilers."""

    def __init__(self, clock: _Clock, results: _Results, cores: int) -> None:
        self._clock, self._results, self._cores = clock, results, cores
        self.search_seconds = 0.0
        self._compiling: list[tuple[float, int, Kernel]] = []  # a heap of (end, number, kernel)
        self._known: set[Kernel] = set()
        self._ready: list[Kernel] = []

    def idle_cores(self) -> int:
        return max(0, self._cores - len(self._compiling))

    def exists(self, kernel: Kernel) -> bool:
        return kernel in self._known

    def trial_seconds(self, kernel: Kernel) -> float:
        compiling = 0.0 if kernel in self._known else self._compile_seconds(kernel) / self._cores
        return compiling + max(result.device_seconds for _, result in self._results[kernel])

    def build(self, kernels: Sequence[Kernel], search_seconds: float) -> None:
        self.search_seconds += search_seconds
        compiling = {kernel for *_, kernel in self._compiling}
        for kernel in kernels:
            if kernel in self._known and kernel not in compiling:
                self._ready.append(kernel)
            elif kernel not in self._known:
                self._known.add(kernel)
                # With all cores busy a kernel waits for the first one that becomes idle.
                ends = sorted(end for end, *_ in self._compiling)
                start = ends[-self._cores] if len(ends) >= self._cores else self._clock.now
                heapq.heappush(self._compiling, (start + self._compile_seconds(kernel), len(self._known), kernel))

    def ready(self, wait: bool, until: Deadline) -> list[Kernel]:
        if wait and self._compiling and not self._ready:
            self._clock.now = max(self._clock.now, self._compiling[0][0])
        ready, self._ready = self._ready, []
        while self._compiling and self._compiling[0][0] <= self._clock.now:
            ready.append(heapq.heappop(self._compiling)[2])
        return ready

    def _compile_seconds(self, kernel: Kernel) -> float:
        return max(result.compile_seconds for _, result in self._results[kernel])


class _Devices:
    """The devices of a trace; implements search.Devices."""

    def __init__(
        self, clock: _Clock, studies: Sequence[SpaceStudy], results: _Results, seed: int, devices: int
    ) -> None:
        self._clock, self._results, self._random = clock, results, random.Random(seed)
        self._depth = MIN_DEPTH if devices > 1 else 1  # of a single device, each result is told before the next trial
        self.places = device_places(dict.fromkeys((study.space.problem for study in studies), 1.0), devices)
        self._running: list[list[tuple[float, SpaceStudy, Kernel, ConfigTrace]]] = [[] for _ in range(devices)]
        self.search_seconds = 0.0
        self.curves: dict[Problem, list[ReplayPoint]] = {}

    def rooms(self) -> list[int]:
        return [max(0, self._depth - len(running)) for running in self._running]

    def measure(self, kernels: Sequence[Kernel]) -> None:
        for kernel in kernels:
            for study, result in self._results[kernel]:
                if not study.wants(kernel.values):
                    continue
                running = self._running[self.places[study.space.problem]]
                start = running[-1][0] if running else self._clock.now
                running.append((start + result.device_seconds, study, kernel, result))
                while len(running) >= self._depth:
                    self._end_next()

    def wait(self) -> None:
        if any(self._running):
            self._end_next()

    def finish(self) -> bool:
        waited = any(self._running)
        while any(self._running):
            self._end_next()
        return waited

    def _end_next(self) -> None:
        """Go on to the end of the measurement that ends next, and tell its study."""
        running = min((one for one in self._running if one), key=lambda one: one[0][0])
        end, study, kernel, result = running.pop(0)
        self._clock.now = max(self._clock.now, end)
        noisy_us = result.best_us * math.exp(self._random.gauss(0, NOISE)) if result.best_us else None
        best_us = self.best_us(study.space.problem)
        started = time.perf_counter()
        study.tell(kernel.values, noisy_us, result.error, is_pruned=(noisy_us or 0.0) > SLOW_FACTOR * best_us)
        self.search_seconds += time.perf_counter() - started
        self._add_point(study.space.problem, result.best_us)

    def best_us(self, problem: Problem) -> float:
        """Return the best time of a problem so far; infinite if there is none."""
        curve = self.curves.get(problem)
        return curve[-1].best_us if curve else math.inf

    def _add_point(self, problem: Problem, us: float | None) -> None:
        curve = self.curves.setdefault(problem, [])
        best_us = min(us or math.inf, self.best_us(problem))
        curve.append(ReplayPoint(self._clock.now, len(curve) + 1, best_us))
