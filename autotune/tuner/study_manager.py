"""The studies of a run: one for each problem and family."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.codegen import kernels_per_unit
from autotune.core import NEVER, Deadline, ceil_div
from autotune.families import Config, Kernel, families, family, serving
from autotune.ir import Problem
from autotune.search import Space, Study, spread, strategy
from autotune.tuner.kernel_builder import KernelBuilder, kernel_of
from autotune.tuner.objectives import objective_value
from autotune.tuner.options import TunerOptions
from tuning_db import Store, launch_text, ranking
from tuning_db.schema import Device, KernelRow, Measurement

ENUMERATION_SHARE = 0.25
"""Share of the search's time in which spaces are enumerated; a large network has hundreds."""
MAX_OUTDATED = 3
"""Outdated kernels, the fastest of a problem and family, whose configs are tried first. A kernel is outdated when its
source has changed since it was measured."""


class StudyManager:
    """Creates the studies of some problems and tells them what the database knows.

    Args:
        store: The database.
        problems: The problems to tune, in the order in which they are searched.
        options: Options of the run.
        builder: Builds kernels.
        spaces: The spaces to search; None for those of all families that serve the problems.

    Attributes:
        studies: The studies; empty before `create_studies`.
    """

    def __init__(
        self,
        store: Store,
        problems: Sequence[Problem],
        options: TunerOptions,
        builder: KernelBuilder,
        spaces: Sequence[Space] | None = None,
    ) -> None:
        self._store, self._problems, self._options = store, problems, options
        self._builder, self._given_spaces = builder, spaces
        self._strategy = strategy(options.strategy)
        self.studies: list[Study] = []

    def create_studies(self, search: Deadline = NEVER, build_early: bool = False) -> None:
        """Create a study for each problem and each family that serves it.

        The studies are in the order in which they are asked first: one of each problem, of the family that supports the
        fewest architectures, because it is likely to make the best use of this one; then the others.

        Args:
            search: Deadline of the search. Spaces are enumerated for ENUMERATION_SHARE of it; the problems that are
                left then are not searched.
            build_early: Start to build the configs of the warm start as soon as they fill all cores, while the other
                spaces are still enumerated. Only a database without measurements leaves the warm start unchanged.
        """
        options = self._options
        spaces: list[Space] = []
        early: dict[Kernel, float] = {}  # kernel -> its share of a translation unit
        until = search.share(ENUMERATION_SHARE)
        for space in self._spaces():
            spaces.append(space)
            if until.is_over:
                break
            if build_early:
                warm_start = self._lowest_cost(space, min(self._strategy.warm_start, options.trials))
                early |= dict.fromkeys(warm_start, 1 / kernels_per_unit(space.family))
                if sum(early.values()) >= options.jobs:
                    self._builder.build(list(early))
                    build_early = False
        self.studies = self._strategy.make_studies(_one_of_each_problem_first(spaces), options.seed, options.gain)

    def max_trials(self, _: Problem) -> int:
        """Return the number of configs that may be tried for a problem."""
        return self._options.trials if self._strategy.is_bounded else sys.maxsize

    def lowest_cost_kernels(self) -> list[Kernel]:
        """Return the kernels with the lowest predicted costs, for each problem as many as may be tried."""
        num_families = Counter(study.space.problem for study in self.studies)
        kernels: dict[Kernel, None] = {}
        for space in (study.space for study in self.studies):
            share = ceil_div(self.max_trials(space.problem), num_families[space.problem])
            kernels |= dict.fromkeys(self._lowest_cost(space, min(share, len(space.configs))))
        return list(kernels)

    def launches(self, problem: Problem, kernel: Kernel) -> list[dict[str, int]]:
        """Return the launch values to time for a problem; none if the kernel does not fit it."""
        found, arch = family(kernel.family), self._options.arch
        if found.why_unfit(problem, kernel.values, arch):
            return []
        names = [parameter.name for parameter in found.launch_parameters]
        return [{name: launch[name] for name in names} for launch in found.launches(problem, kernel.values, arch)]

    def value(self, problem: Problem, us: float | None, details: Mapping[str, Any]) -> float | None:
        """Return the objective of a trial, or None if it failed."""
        return objective_value(self._options.objectives, problem, us, details)

    def tell_failure(self, kernel: Kernel) -> None:
        """Tell the studies that a kernel does not compile.

        Before the studies exist nothing is told: `tell_known` finds the failure among the builder's rows.
        """
        for study in self.studies:
            if study.space.contains(kernel):
                study.tell(kernel.values, None)

    def tell_known(self, device: Device) -> None:
        """Tell the studies the results of the database.

        Only results of kernels whose source is unchanged count. Of the outdated ones, the configs of the fastest are
        tried first.
        """
        kernel_by_id = {row.id: kernel for kernel, row in self._builder.rows.items()}
        for study in self.studies:
            space = study.space
            measured = self._store.measurements(device, str(space.problem))
            best: dict[Kernel, float | None] = {
                kernel: None for kernel, row in self._builder.rows.items() if row.error and space.contains(kernel)
            }
            tried: dict[Kernel, set[str]] = {}
            for row in measured:
                if row.kernel_id in kernel_by_id and space.contains(kernel_by_id[row.kernel_id]):
                    kernel = kernel_by_id[row.kernel_id]
                    value = self.value(space.problem, row.median_us, row.details)
                    tried.setdefault(kernel, set()).add(launch_text(row.launch))
                    best[kernel] = min((v for v in (best.get(kernel), value) if v is not None), default=None)
            study.enqueue(self._outdated_configs(space, [row for row in measured if row.kernel_id not in kernel_by_id]))
            for kernel, value in best.items():
                # A kernel of which only some launches were tried was interrupted: it is tried again.
                if kernel not in tried or all(
                    launch_text(launch) in tried[kernel] for launch in self.launches(space.problem, kernel)
                ):
                    study.tell(kernel.values, value)

    def recorded_values(self, device: Device, problem: Problem, row: KernelRow) -> list[float | None]:
        """Return the objectives of a kernel's recorded trials on a problem, with any launch values."""
        measured = self._store.measurements(device, str(problem))
        return [self.value(problem, m.median_us, m.details) for m in measured if m.kernel_id == row.id]

    def _spaces(self) -> Iterator[Space]:
        """Yield the space of each problem and family."""
        if self._given_spaces is not None:
            yield from self._given_spaces
            return
        options = self._options
        for problem in self._problems:
            for found in serving(problem, options.arch):
                if found.name not in options.only and (options.only or found.opt_in):
                    continue
                configs = found.configs_for(problem, options.arch, options.allow)
                costs = [found.cost(problem, config, options.arch) for config in configs]
                space = Space.ranked(problem, found.name, configs, costs)
                yield space.truncate(options.limit, options.seed) if options.limit else space

    def _lowest_cost(self, space: Space, count: int) -> list[Kernel]:
        """Return kernels of a space with low predicted costs that are unlike each other."""
        return [space.kernel(space.configs[i], self._options.target) for i in spread(space, count)]

    def _outdated_configs(self, space: Space, measured: Sequence[Measurement]) -> list[Config]:
        """Return the configs of a space whose outdated kernels were the fastest."""
        rows = [row for row in measured if row.status == "ok" and row.kernel.family == space.family]
        kernels = dict.fromkeys(kernel_of(row.kernel) for row in ranking.ranked(rows))
        target = self._options.target
        return [k.values for k in kernels if k and k.target == target and space.contains(k)][:MAX_OUTDATED]


def _one_of_each_problem_first(spaces: Sequence[Space]) -> list[Space]:
    """Return spaces in the order of their problems: one of each, then a second one of each, and so on.

    Of the spaces of a problem, that of the family with the fewest architectures comes first.
    """
    turns: Counter[Problem] = Counter()
    order: list[tuple[int, Space]] = []
    for space in sorted(spaces, key=lambda space: _num_architectures(space.family)):
        order.append((turns[space.problem], space))
        turns[space.problem] += bool(space.configs)
    position = {problem: i for i, problem in enumerate(dict.fromkeys(space.problem for space in spaces))}
    return [space for _, space in sorted(order, key=lambda item: (item[0], position[item[1].problem]))]


def _num_architectures(name: str) -> int:
    found = families().get(name)
    return len(found.architectures) if found else 0
