"""The order of a run: the compilers are kept at work on what is asked for while what is ready is being measured.

The same loop drives a machine (autotune/tuner/tuner.py) and a recording of one (autotune/search/simulator.py).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from autotune.codegen import together
from autotune.core import ceil_div
from autotune.families.base import Config, Kernel
from autotune.ir import Problem
from autotune.search.space import Study

AT_ONCE = 4
"""Kernels that are measured before the compilers are looked after again."""
AHEAD = 32
"""While so many kernels wait to be measured, no more are asked for."""
LEAST = 4
"""Configs that a study is asked for at a time: to be asked costs it milliseconds."""
FIRST = 2
"""The same until it has had LEAST: a short budget, or one for few cores, is to end with something for every layer."""


class Bench(Protocol):
    """Compiles and measures."""

    def time_left(self) -> bool:
        """Whether the run may go on."""

    def room(self) -> int:
        """How many more units the compilers would start on at once."""

    def seconds(self, kernel: Kernel) -> float:
        """What compiling and measuring a kernel would take; 0 compiling where it exists."""

    def compile(self, kernels: Sequence[Kernel], choosing: float) -> None:
        """Begin to make kernels, if any; those that exist are ready at once. choosing: seconds that choosing took."""

    def ready(self, wait: bool) -> list[Kernel]:
        """Kernels that became ready. wait: until there is one, unless nothing is being made."""

    def measure(self, kernels: Sequence[Kernel]) -> None:
        """Measure kernels on the problems whose studies want them, and tell these; the last may still be under way."""

    def finish(self) -> bool:
        """Tell the studies what is still under way; whether there was anything."""


class Schedule:
    """Takes turns among the studies.

    target: what kernels are compiled for. trials: how many configs may be tried for a problem, by all families.
    """

    def __init__(self, studies: Sequence[Study], bench: Bench, target: str, trials: Callable[[Problem], int]) -> None:
        self._turns = deque(study for study in studies if study.total)
        self._of: dict[Problem, list[Study]] = {}
        for study in self._turns:
            self._of.setdefault(study.space.problem, []).append(study)
        self._bench, self._target, self._trials = bench, target, trials
        self._kernels: dict[tuple[int, int], Kernel] = {}
        self._resting = False

    def begin(self) -> None:
        """Give the compilers work, if there is time left."""
        if self._bench.time_left():
            self._compile()

    def run(self) -> None:
        """Ask, compile and measure until no study wants more, or there is no time left.

        What is begun in time is waited for until something has been measured: a short budget is not for nothing.
        """
        queue: deque[Kernel] = deque()
        measured = False
        while (time_left := self._bench.time_left()) or not measured:
            if self._resting and not queue:
                self._bench.finish()  # they wanted nothing: before they are asked again they should know more
            # What waits to be measured will teach more than what is asked for now could know. What is at the device is
            # little: it goes on while we choose, and a study takes into account that it is pending.
            asked = time_left and len(queue) < AHEAD and self._compile()
            queue.extend(self._bench.ready(wait=False))
            if not queue:
                if self._bench.finish():
                    continue  # with that in mind, there may be more to ask for
                queue.extend(self._bench.ready(wait=True))
            if queue:
                self._bench.measure([queue.popleft() for _ in range(min(AT_ONCE, len(queue)))])
                measured = True
            elif not asked:
                break
        self._bench.finish()

    def _compile(self) -> bool:
        """Ask for what the compilers have room for; whether there was anything."""
        room, started = self._bench.room(), time.perf_counter()
        wanted = (self._wanted(room) or self._wanted(room)) if room else []  # at first one may wait for another
        self._resting = bool(room) and not wanted
        if room:
            self._bench.compile(wanted, time.perf_counter() - started)
        return bool(wanted)

    def _wanted(self, units: int) -> list[Kernel]:
        """Kernels that fill about so many units, from one study after the other."""
        wanted: dict[Kernel, None] = {}
        filled = 0.0
        for _ in range(len(self._turns)):
            study = self._turns[0]
            self._turns.rotate(-1)
            a_unit = together(study.space.family)
            least = max(LEAST, a_unit) if study.told + len(study.pending) >= LEAST else FIRST
            share = max(least, ceil_div(units * a_unit, len(self._turns)))
            left = self._left(study.space.problem)
            asked = self._asked(study, min(share, left)) if left > 0 else []
            wanted |= dict.fromkeys(asked)
            filled += len(asked) / a_unit
            if filled >= units:
                break
        return list(wanted)

    def _left(self, problem: Problem) -> int:
        """How many more configs may be tried for a problem."""
        return self._trials(problem) - sum(study.told + len(study.pending) for study in self._of[problem])

    def _asked(self, study: Study, count: int) -> list[Kernel]:
        configs = study.ask(count, lambda config: self._bench.seconds(self._kernel(study, config)))
        return [self._kernel(study, config) for config in configs]

    def _kernel(self, study: Study, config: Config) -> Kernel:
        """The kernel of one of a space's configs, made once: a study asks for the seconds of many, many times."""
        at = id(study), id(config)
        if at not in self._kernels:
            self._kernels[at] = study.space.kernel(config, self._target)
        return self._kernels[at]
