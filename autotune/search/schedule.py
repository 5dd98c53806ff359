"""The order of a search: which studies are asked next, which kernels are measured next, and on which device."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from autotune.codegen import kernels_per_unit
from autotune.core import ceil_div, timeline
from autotune.families import Config, Kernel
from autotune.ir import Problem
from autotune.search.study import SpaceStudy

MEASURE_BATCH = 4
"""Kernels that are measured before idle compilers are given new work."""
PREFETCH = 32
"""No more configs are asked for a device's problems while this many kernels that were compiled for them wait to be
measured. Kernels that existed do not count: with many of them compilers would have nothing to do."""
MAX_WAITING = 4 * PREFETCH
"""The same for all kernels that wait."""
NOT_NOW = 1e9
"""Cost of measuring a kernel that exists while enough of them wait and compilers are idle."""
COMPILING_PER_DEVICE = 16
"""Most translation units that are compiled at a time for each device. With more the device gets kernels faster than it
times them. In replays 16 was best, 20 and 24 were worse (docs/experiments/cluster-scaling.md)."""
ASK_BATCH = 4
"""Configs per `ask()`; a call takes milliseconds."""
WARM_START_BATCH = 2
"""Configs per `ask()` until a study has started ASK_BATCH of them, so that a run with a short budget or few cores
measures something for every layer."""
MANY_PROBLEMS = 4
"""Problems for each compiler from which a run counts as large: compilers then take long to reach all problems."""
REUSED_RANK = 24
"""Configs with the lowest costs among which the first questions of a study in a large run look for existing kernels."""
FIRST_BATCH = 1
"""Configs of the first question of a study in a large run: first each problem needs a kernel."""
MIN_WEIGHT = 0.05
"""Least weight of a problem as a share of the largest weight: light problems are asked seldom, but not never."""


def is_large(num_problems: int, num_compilers: int) -> bool:
    """Return whether a run has many problems for its compilers."""
    return num_problems > MANY_PROBLEMS * num_compilers


class _Ready(NamedTuple):
    """A kernel that waits to be measured.

    Attributes:
        kernel: The kernel.
        problem: The problem that it was asked for first; None if it was built early.
        rank: The rank of its config for that problem.
        number: Number of kernels that became ready before it.
        existed: Whether it existed when it was asked for.
    """

    kernel: Kernel
    problem: Problem | None
    rank: int
    number: int
    existed: bool


class Schedule:
    """Asks the studies in turn, and orders the kernels that wait to be measured.

    Args:
        studies: The studies.
        target: Compilation target of the kernels.
        max_trials: Number of configs that may be tried for a problem, by all families together.
        num_compilers: Number of translation units that compilers work on at a time.
        places: The number of the device that measures a problem; 0 for a problem that is not in it.
        num_devices: Number of devices that measure at a time.
        exists: Returns whether a kernel is compiled, or is being compiled.
        trial_seconds: Returns the seconds that compiling and measuring a kernel would take; compiling is free where the
            kernel exists.
    """

    def __init__(
        self,
        studies: Sequence[SpaceStudy],
        target: str,
        max_trials: Mapping[Problem, int],
        *,
        num_compilers: int,
        places: Mapping[Problem, int],
        num_devices: int,
        exists: Callable[[Kernel], bool],
        trial_seconds: Callable[[Kernel], float],
    ) -> None:
        self._turns = [study for study in studies if study.total]
        self._passes = dict.fromkeys(self._turns, 0.0)
        self._by_problem: dict[Problem, list[SpaceStudy]] = {}
        for study in self._turns:
            self._by_problem.setdefault(study.space.problem, []).append(study)
        self._target, self._max_trials, self._exists = target, max_trials, exists
        # Studies of one family, dtype and epilogue share their kernels, by the id of the config.
        shared: dict[tuple[object, ...], dict[int, Kernel]] = {}
        self._kernels = {study: shared.setdefault(study.space.kernel_group, {}) for study in self._turns}
        self._asked_for: dict[Kernel, tuple[Problem, int]] = {}  # -> the problem, and the config's rank for it
        self._existed: set[Kernel] = set()  # kernels that existed when they were asked for
        for study in self._turns:
            study.sampler.trial_seconds = partial(self._trial_seconds, trial_seconds, study)
        self._num_compilers, self._places = num_compilers, places
        self._queues: list[list[_Ready]] = [[] for _ in range(num_devices)]  # kernels that wait, by device
        self._num_ready = 0
        self._is_large = is_large(len(self._by_problem), num_compilers)

    @property
    def has_waiting(self) -> bool:
        """Return whether a kernel waits to be measured."""
        return any(self._queues)

    @property
    def asks_all(self) -> bool:
        """Return whether the studies of all devices are asked: no device has a long queue."""
        return len(self._short_queues()) == len(self._queues)

    def add(self, kernels: Sequence[Kernel]) -> None:
        """Let kernels that are compiled wait for their devices."""
        for kernel in kernels:
            problem, rank = self._asked_for.get(kernel, (None, 0))
            ready = _Ready(kernel, problem, rank, self._num_ready, kernel in self._existed)
            self._queues[self._place(ready.problem)].append(ready)
            self._num_ready += 1

    def next(self, rooms: Sequence[int], places: Mapping[Problem, int]) -> list[Kernel]:
        """Take the next kernels to measure: of the problems with the fewest results, in the order of the queue.

        Only devices with room get kernels. With several devices a problem has few results when it is done, so the order
        decides how soon it has a good kernel: the lowest predicted cost is first.

        Args:
            rooms: How many candidates each device takes without a wait.
            places: The number of the device that measures a problem. If a device was lost, there are fewer rooms, and
                its problems have other places.
        """
        if len(rooms) != len(self._queues):
            lost, self._queues, self._places = self._queues, [[] for _ in rooms], places
            for ready in (ready for queue in lost for ready in queue):
                self._queues[self._place(ready.problem)].append(ready)
        rooms, by_rank = list(rooms), len(rooms) > 1
        waiting = [(place, ready) for place, queue in enumerate(self._queues) if rooms[place] for ready in queue]
        results = {ready.problem: self._num_results(ready.problem) for _, ready in waiting}
        waiting.sort(key=lambda one: (results[one[1].problem], one[1].rank if by_rank else 0, one[1].number))
        taken: list[Kernel] = []
        for place, ready in waiting:
            if len(taken) == MEASURE_BATCH or not any(rooms):
                break
            if rooms[place]:
                rooms[place] -= 1
                self._queues[place].remove(ready)
                taken.append(ready.kernel)
        return taken

    def free_units(self, idle: int) -> int:
        """Return the number of translation units to start, as far as all devices can use them.

        Kernels that wait to be measured will teach the studies more than they know now, so a long queue stops further
        questions. The few results that a device still owes do not: studies know what is pending.

        Args:
            idle: Number of translation units that compilers would start on at once.
        """
        busy = self._num_compilers - idle
        room = COMPILING_PER_DEVICE * len(self._queues) - busy
        return max(0, min(idle, room, COMPILING_PER_DEVICE * len(self._short_queues())))

    def ask(self, num_units: int, weights: Mapping[Problem, float]) -> list[Kernel]:
        """Ask for kernels that fill some translation units; there may be none.

        Args:
            num_units: Number of translation units.
            weights: Weights of the problems; without any, all are equal. The turns of studies are in proportion
                to the weights of their problems, as long as all want more.
        """
        short = self._short_queues()
        # The second question counts: a family that waited in the first may be the one that expects most by then.
        return self._wanted(num_units, short, weights) or self._wanted(num_units, short, weights)

    def _short_queues(self) -> set[int]:
        return {
            place
            for place, queue in enumerate(self._queues)
            if len(queue) < MAX_WAITING and sum(not ready.existed for ready in queue) < PREFETCH
        }

    def _is_long(self, problem: Problem, asked: int = 0) -> bool:
        """Return whether a problem's device has enough to measure, with some more kernels that exist."""
        return len(self._queues[self._place(problem)]) + asked >= PREFETCH

    def _place(self, problem: Problem | None) -> int:
        return self._places.get(problem, 0) if problem else 0

    def _num_results(self, problem: Problem | None) -> int:
        return sum(study.num_observed for study in self._by_problem[problem]) if problem else 0

    def _wanted(self, num_units: int, places: Container[int], weights: Mapping[Problem, float]) -> list[Kernel]:
        """Return kernels that fill about `num_units` translation units, asking each study of some devices at most once.

        The order is that of stride scheduling (Waldspurger and Weihl 1995): each turn advances a study's pass by the
        inverse of its weight, and the study with the lowest pass is next. Equal weights make it a round robin. A study
        that wants nothing leaves its turn to the next one.
        """
        wanted: dict[Kernel, None] = {}
        filled, existing = 0.0, 0
        heaviest = max(weights.values(), default=1.0) or 1.0
        asking = [study for study in self._turns if self._place(study.space.problem) in places]
        for study in sorted(asking, key=self._passes.__getitem__):
            problem = study.space.problem
            weight = weights.get(problem, heaviest) / heaviest
            self._passes[study] += 1 / max(weight, MIN_WEIGHT)
            per_unit = kernels_per_unit(study.space.family)
            count = max(self._batch(study, per_unit), ceil_div(num_units * per_unit, len(asking)))
            left = self._trials_left(problem)
            prefers_existing = self._is_large and not self._is_long(problem, existing)
            if self._is_large and study.num_started < WARM_START_BATCH:
                self._enqueue(study, existing=prefers_existing)
            asked = self._ask(study, min(count, left)) if left > 0 else []
            found = sum(kernel in self._existed for kernel in asked)
            existing += found
            filled += (len(asked) - found if prefers_existing else len(asked)) / per_unit
            wanted |= dict.fromkeys(asked)
            if filled >= num_units:
                break
        return list(wanted)

    def _batch(self, study: SpaceStudy, per_unit: int) -> int:
        """Return the least number of configs to ask a study for."""
        if study.num_started >= ASK_BATCH:
            return max(ASK_BATCH, per_unit)
        return FIRST_BATCH if self._is_large and not study.num_started else WARM_START_BATCH

    def _enqueue(self, study: SpaceStudy, existing: bool) -> None:
        """Let a study begin with kernels that exist, so that each layer of a large network soon has a time.

        Args:
            study: The study.
            existing: Whether they exist; else the device has enough to measure, and idle compilers make others.
        """
        likely = study.space.configs[:REUSED_RANK]
        found = [config for config in likely if self._exists(self._kernel(study, config)) is existing]
        study.enqueue(found[:WARM_START_BATCH])

    def _trials_left(self, problem: Problem) -> int:
        """Return the number of configs that may still be tried for a problem."""
        return self._max_trials[problem] - sum(study.num_started for study in self._by_problem[problem])

    def _ask(self, study: SpaceStudy, count: int) -> list[Kernel]:
        space = study.space
        with timeline.span(timeline.Lane.SEARCH, f"choose: {space.name}", sampler=type(study.sampler).__name__) as told:
            configs = study.ask(count)
            told |= {"configs": len(configs), "observed": study.num_observed, "free": study.total - study.num_started}
        kernels = [self._kernel(study, config) for config in configs]
        self._existed.update(kernel for kernel in kernels if self._exists(kernel))
        for kernel, config in zip(kernels, configs, strict=True):
            self._asked_for.setdefault(kernel, (space.problem, space.index_of(config) or 0))
        return kernels

    def _trial_seconds(self, of_kernel: Callable[[Kernel], float], study: SpaceStudy, config: Config) -> float:
        kernel = self._kernel(study, config)
        if self._is_long(study.space.problem):  # it is asked for something to compile, which takes no device time
            return NOT_NOW if self._exists(kernel) else 1.0
        return of_kernel(kernel)

    def _kernel(self, study: SpaceStudy, config: Config) -> Kernel:
        """Return the kernel of a config of a study's space.

        Kernels are cached, since a study asks for the cost of the same configs many times.
        """
        known = self._kernels[study]
        if id(config) not in known:
            known[id(config)] = study.space.kernel(config, self._target)
        return known[id(config)]


MIN_DEPTH = 3
"""Candidates at each of several devices: the one that is measured, and two behind it."""


def device_places(weights: Mapping[Problem, float], count: int) -> dict[Problem, int]:
    """Return a device for each problem: the heaviest problems first, each to the device with the least work.

    A problem's work is the share of its studies' turns, which a schedule does not let fall below MIN_WEIGHT.

    Args:
        weights: Shares of the problems in the work.
        count: Number of devices.
    """
    least = MIN_WEIGHT * max(weights.values(), default=0.0)
    work, places = [0.0] * count, {}
    for problem in sorted(weights, key=lambda problem: -weights[problem]):
        places[problem] = min(range(count), key=work.__getitem__)
        work[places[problem]] += max(weights[problem], least)
    return places
