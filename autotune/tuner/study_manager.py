"""What a run searches: a study for each problem and family, and what the database knows that it should be told."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from autotune.codegen import kernels_per_unit
from autotune.core import ceil_div
from autotune.families import family, serving
from autotune.families.base import Config, Kernel
from autotune.ir import Problem
from autotune.search import Space, Study, spread, strategy
from autotune.tuner.kernel_builder import Workshop, kernel_of
from autotune.tuner.objectives import value
from autotune.tuner.options import Options
from tuning_db import Store, launch_text, ranking
from tuning_db.schema import Device, KernelRow, Measurement

OLDER = 3
"""Kernels of another text than today's, the fastest of a problem and family, whose configs are tried first."""


class Searches:
    """The studies of some problems.

    timed: whether kernels will be. Then the workshop begins with the prior's best while spaces are still enumerated, if
    nothing is known that could change what is asked for first.
    """

    def __init__(
        self, store: Store, problems: Sequence[Problem], options: Options, workshop: Workshop, timed: bool
    ) -> None:
        self._store, self._problems, self._options = store, problems, options
        self._workshop, self._timed = workshop, timed

    @cached_property
    def studies(self) -> list[Study]:
        """A search for each problem and family that serves it; of those that must be named, the named ones."""
        options, chosen = self._options, strategy(self._options.strategy)
        spaces: list[Space] = []
        early: dict[Kernel, float] = {}  # what will be asked for first -> its share of a unit
        ahead = self._timed and not self._store.devices()
        for space in self._spaces():
            spaces.append(space)
            if ahead:
                best = self._prior_best(space, min(chosen.warm_start, options.trials))
                early |= dict.fromkeys(best, 1 / kernels_per_unit(space.family))
                if sum(early.values()) >= options.jobs:
                    self._workshop.make(list(early))
                    ahead = False
        return chosen.make_studies(spaces, options.seed, options.gain)

    def _spaces(self) -> Iterator[Space]:
        """The configs of each problem and family."""
        options = self._options
        for problem in self._problems:
            for found in serving(problem, options.arch):
                if found.name not in options.only and (options.only or found.opt_in):
                    continue
                configs = found.configs_for(problem, options.arch, options.allow)
                costs = [found.cost(problem, config, options.arch) for config in configs]
                space = Space.ranked(problem, found.name, configs, costs)
                yield space.truncate(options.limit, options.seed) if options.limit else space

    def _prior_best(self, space: Space, count: int) -> list[Kernel]:
        """The kernels of a space that the prior thinks best, unlike each other."""
        return [space.kernel(space.configs[i], self._options.target) for i in spread(space, count)]

    def most(self, _: Problem) -> int:
        """How many configs may be tried for a problem."""
        return self._options.trials if strategy(self._options.strategy).is_bounded else sys.maxsize

    def untimed(self) -> list[Kernel]:
        """The prior's best, as many as may be tried: what is made where nothing can be timed."""
        families = Counter(study.space.problem for study in self.studies)
        kernels: dict[Kernel, None] = {}
        for space in (study.space for study in self.studies):
            count = min(ceil_div(self.most(space.problem), families[space.problem]), len(space.configs))
            kernels |= dict.fromkeys(self._prior_best(space, count))
        return list(kernels)

    def launches(self, problem: Problem, kernel: Kernel) -> list[dict[str, int]]:
        """The launch values worth timing for a problem; none if the kernel does not fit it."""
        found, arch = family(kernel.family), self._options.arch
        if found.why_unfit(problem, kernel.values, arch):
            return []
        names = [parameter.name for parameter in found.launch_parameters]
        return [{name: launch[name] for name in names} for launch in found.launches(problem, kernel.values, arch)]

    def value(self, problem: Problem, us: float | None, details: Mapping[str, Any]) -> float | None:
        """What a trial is judged by; None of one that failed."""
        return value(self._options.objectives, problem, us, details)

    # -- what is known -----------------------------------------------------------------------------------------

    def failed(self, kernel: Kernel) -> None:
        """Tell what would not compile; studies that are still being made find it among what is known."""
        for study in vars(self).get("studies", ()):
            if study.space.contains(kernel):
                study.tell(kernel.values, None)

    def recall(self, device: Device) -> None:
        """Tell the studies what the database holds of kernels that would be made again as they are.

        Of others, made from another text, only that they were fast.
        """
        by_id = {row.id: kernel for kernel, row in self._workshop.rows.items()}
        for study in self.studies:
            space = study.space
            measured = self._store.measurements(device, str(space.problem))
            best: dict[Kernel, float | None] = {
                kernel: None for kernel, row in self._workshop.rows.items() if row.error and space.contains(kernel)
            }
            tried: dict[Kernel, set[str]] = {}
            for row in measured:
                if row.kernel_id in by_id and space.contains(by_id[row.kernel_id]):
                    kernel, found = by_id[row.kernel_id], self.value(space.problem, row.median_us, row.details)
                    tried.setdefault(kernel, set()).add(launch_text(row.launch))
                    best[kernel] = min((v for v in (best.get(kernel), found) if v is not None), default=None)
            study.enqueue(self._once_fast(space, [row for row in measured if row.kernel_id not in by_id]))
            for kernel, known in best.items():
                if kernel not in tried or all(
                    launch_text(launch) in tried[kernel] for launch in self.launches(space.problem, kernel)
                ):
                    study.tell(kernel.values, known)  # of others a run was stopped between two launch values

    def _once_fast(self, space: Space, measured: Sequence[Measurement]) -> list[Config]:
        """The configs of a space that did best as kernels of another text."""
        mine = [row for row in measured if row.status == "ok" and row.kernel.family == space.family]
        kernels = dict.fromkeys(kernel_of(row.kernel) for row in ranking.ranked(mine))
        target = self._options.target
        return [k.values for k in kernels if k and k.target == target and space.contains(k)][:OLDER]

    def recorded(self, device: Device, problem: Problem, row: KernelRow) -> list[float | None]:
        """What is known of a kernel on a problem, for any launch values."""
        measured = self._store.measurements(device, str(problem))
        return [self.value(problem, m.median_us, m.details) for m in measured if m.kernel_id == row.id]
