"""Searches a recording as if it were a machine: in simulated time, without compiler or device.

Kernels take the seconds that they took, on as many cores as are given, and one device measures them, one after the
other. The loop is the tuner's own, so strategies are compared under the conditions that they meet.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.families.base import Kernel
from autotune.ir import Problem
from autotune.search import strategy
from autotune.search.schedule import Schedule
from autotune.search.space import Study
from autotune.search.trace import Recorded, Recording

FEW = 8
"""Configs of a problem that may be tried whatever the share."""
NOISE = 0.005
"""Standard deviation of a time that is told, as a share of it: no time comes out twice. Each seed has its own."""


@dataclass(frozen=True)
class Step:
    """A config measured on a problem: the clock, how many were by then, and the best time so far."""

    seconds: float
    tried: int
    best_us: float


@dataclass(frozen=True)
class Replay:
    """One search: each problem's steps, how many configs its spaces hold, and its best time of all."""

    steps: dict[Problem, list[Step]]
    totals: dict[Problem, int]
    best_us: dict[Problem, float]

    def excess_after(self, problem: Problem, share: float) -> float:
        """How far above the best a problem is, as a share of it, once so much of its spaces was tried."""
        limit = max(FEW, share * self.totals[problem])
        found = [step.best_us for step in self.steps[problem] if step.tried <= limit]
        return found[-1] / self.best_us[problem] - 1 if found else math.inf

    def excess_at(self, seconds: float) -> float:
        """How far above the sum of the bests the sum over all problems is, once so many seconds have passed."""
        found = [
            next((step.best_us for step in reversed(steps) if step.seconds <= seconds), math.inf)
            for steps in self.steps.values()
        ]
        return sum(found) / sum(self.best_us.values()) - 1

    @property
    def seconds(self) -> float:
        """When the last config was measured."""
        return max((steps[-1].seconds for steps in self.steps.values() if steps), default=0.0)

    @property
    def tried(self) -> float:
        """The share of all configs that were measured."""
        return sum(len(steps) for steps in self.steps.values()) / sum(self.totals.values())


def replay(
    recording: Recording, name: str, seed: int, cores: int, share: float = 1.0, gain: float = 0.0, budget: float = 1e9
) -> Replay:
    """Search a recording by a strategy's name. share: how many of a problem's configs may be tried.

    gain: as in Strategy. budget: simulated seconds.
    """
    studies = strategy(name).studies([track.space for track in recording.tracks], seed, gain)
    bench = _Simulated(recording, studies, seed, cores, budget)
    totals: dict[Problem, int] = {}
    for track in recording.tracks:
        totals[track.space.problem] = totals.get(track.space.problem, 0) + len(track.results)
    Schedule(studies, bench, recording.target, lambda problem: max(FEW, int(share * totals[problem]))).run()
    best = recording.best_us()
    return Replay({problem: bench.steps.get(problem, []) for problem in best}, totals, best)


class _Simulated:
    """The bench of a recording (search.schedule.Bench)."""

    def __init__(self, recording: Recording, studies: Sequence[Study], seed: int, cores: int, budget: float) -> None:
        self.clock, self._budget, self._cores = 0.0, budget, cores
        self._random = random.Random(seed)
        self.steps: dict[Problem, list[Step]] = {}
        self._making: list[tuple[float, int, Kernel]] = []
        self._known: set[Kernel] = set()
        self._ready: list[Kernel] = []
        self._seconds: dict[Kernel, float] = {}
        self._serves: dict[Kernel, list[tuple[Study, Recorded]]] = {}
        for track, study in zip(recording.tracks, studies, strict=True):
            for config, result in zip(track.space.configs, track.results, strict=True):
                kernel = track.space.kernel(config, recording.target)
                self._serves.setdefault(kernel, []).append((study, result))
                self._seconds[kernel] = max(self._seconds.get(kernel, 0.0), result.compile_seconds)

    def time_left(self) -> bool:
        return self.clock < self._budget

    def room(self) -> int:
        return max(0, self._cores - len(self._making))

    def seconds(self, kernel: Kernel) -> float:
        making = 0.0 if kernel in self._known else self._seconds[kernel] / self._cores
        return making + max(result.seconds for _, result in self._serves[kernel])

    def compile(self, kernels: Sequence[Kernel], choosing: float) -> None:
        making = {kernel for *_, kernel in self._making}
        for kernel in kernels:
            if kernel in self._known and kernel not in making:
                self._ready.append(kernel)
            elif kernel not in self._known:
                self._known.add(kernel)
                # With all cores at work a kernel waits for the first that is done.
                starts = sorted(end for end, *_ in self._making)
                start = starts[-self._cores] if len(starts) >= self._cores else self.clock
                heapq.heappush(self._making, (start + self._seconds[kernel], len(self._known), kernel))

    def ready(self, wait: bool) -> list[Kernel]:
        if wait and self._making and not self._ready:
            self.clock = max(self.clock, self._making[0][0])
        done, self._ready = self._ready, []
        while self._making and self._making[0][0] <= self.clock:
            done.append(heapq.heappop(self._making)[2])
        return done

    def measure(self, kernels: Sequence[Kernel]) -> None:
        for kernel in kernels:
            for study, result in self._serves[kernel]:
                if not study.wants(kernel.values):
                    continue
                self.clock += result.seconds
                told = result.us * math.exp(self._random.gauss(0, NOISE)) if result.us else None
                study.tell(kernel.values, told)
                self._note(study.space.problem, result.us)

    def finish(self) -> bool:
        return False  # measure() has told all

    def _note(self, problem: Problem, us: float | None) -> None:
        steps = self.steps.setdefault(problem, [])
        best = min(us or math.inf, steps[-1].best_us if steps else math.inf)
        steps.append(Step(self.clock, len(steps) + 1, best))
