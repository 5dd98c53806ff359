"""The studies of a run: one for each problem and family."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from threading import Event

from autotune.codegen import kernels_per_unit
from autotune.core import NEVER, Deadline, ceil_div, pareto_front, timeline
from autotune.families import AnyFamily, Config, Kernel, Value, families, family, serving
from autotune.ir import Problem, kind_of
from autotune.measure import Result, is_pruned
from autotune.search import (
    KernelGroup,
    KnownTimes,
    Space,
    SpaceStudy,
    create_studies,
    kernel_group,
    problem_similarity,
    sampler_choice,
    spread,
)
from autotune.tuner.kernel_builder import ForeignKernels, KernelBuilder, kernel_of, parsed
from autotune.tuner.request import TunerOptions, objective_values
from tuning_db import Store, launch_text, ranking
from tuning_db.schema import Device, KernelRow, Measurement

ENUMERATION_SHARE, MOST_ENUMERATION_SHARE = 0.1, 0.2
ENUMERATION_SECONDS = 6.0
"""Spaces are enumerated for the first share of the search's time. A large network has hundreds of spaces, and a short
search tries few of them. Shorter times than these seconds are lengthened up to the second share: in a search of 30 s
the first one left out the best family of SE-ResNet9-Fixup's 3x3 convolutions."""
MAX_OUTDATED = 3
"""Outdated kernels, the fastest of a problem and family, whose configs are tried first. A kernel is outdated when its
source has changed since it was measured."""

MAX_REUSED = 6
"""Existing kernels that a study tries first: as many as a warm start would compile."""
NUM_NEAREST = 3
"""Problems whose fastest kernels these are: the most similar ones."""
MAX_OTHER_PROBLEMS = 32
"""Problems outside the run whose times a study's model knows. The limit keeps the model's fits short."""

AGAIN = 1.1
"""A later run goes on with the kernels within this factor of the best first launch. It is less than
kernel_trials.PROMISING, because the times of finalists are those of the finals by then, which differ from those of the
trials."""

_Ranking = Sequence[tuple[Kernel, float]]
"""Kernels of a problem with their times in microseconds, the fastest first."""


class StudyManager:
    """Creates the studies of some problems and tells them what the database knows.

    Args:
        store: The database.
        problems: The problems to tune, in the order in which they are searched.
        options: Options of the run.
        builder: Builds kernels; it tells the studies which do not compile.
        spaces: The spaces to search; None for those of all families that serve the problems.
        foreign: Kernels of other databases.

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
        foreign: ForeignKernels | None = None,
    ) -> None:
        self._store, self._problems, self._options = store, problems, options
        self._builder, self._given_spaces = builder, spaces
        builder.on_failure = self.tell_failure
        self._choice = sampler_choice(options.sampler, len(options.objectives))
        self._foreign = foreign
        self._others: dict[Problem, _Ranking] = {}
        self.studies: list[SpaceStudy] = []
        self._by_group: dict[KernelGroup, list[SpaceStudy]] = {}
        self._enumerated: list[Space] = []
        self._configs: dict[tuple[Value, ...], Config] = {}

    def enumerate(self, search: Deadline = NEVER, stop: Event | None = None) -> None:
        """Enumerate the spaces to search; a thread of its own may do that.

        Args:
            search: Deadline of the search. Spaces are enumerated for a share of it, and as long as a problem has none
                for a larger share; what is left then is not searched: first the further families of the lightest
                problems.
            stop: Ends the enumeration behind the space at hand.
        """
        least, most = search.share(ENUMERATION_SHARE).left, search.share(MOST_ENUMERATION_SHARE)
        until, begun = most.within(max(least, ENUMERATION_SECONDS)), set[Problem]()
        for space in self._spaces():
            self._enumerated.append(space)
            if stop and stop.is_set():
                return
            if (until if space.problem in begun else most).is_over:
                return
            begun.add(space.problem)

    def first_kernels(self) -> list[Kernel]:
        """Return kernels of the warm start that fill all cores; none as long as too few spaces are enumerated.

        Only a database without measurements leaves the warm start unchanged.
        """
        early: dict[Kernel, float] = {}  # kernel -> its share of a translation unit
        for space in tuple(self._enumerated):
            warm_start = self._lowest_cost(space, min(self._choice.warm_start, self._options.trials))
            early |= dict.fromkeys(warm_start, 1 / kernels_per_unit(space.family))
            if sum(early.values()) >= self._options.jobs:
                return list(early)
        return []

    def create_studies(self) -> None:
        """Create a study for each problem and each family whose space is enumerated.

        The studies are in the order in which they are asked first: one of each problem, of the family that supports the
        fewest architectures, because it is likely to make the best use of this one; then the others.
        """
        options = self._options
        spaces = _one_of_each_problem_first(self._enumerated)
        self._others = {} if self._given_spaces is not None else self._other_problems()
        others = list(self._other_spaces({space.family for space in spaces}))
        self.studies = create_studies(
            options.sampler, spaces, options.seed, options.gain, others, len(options.objectives)
        )
        for study in self.studies:
            self._by_group.setdefault(study.space.kernel_group, []).append(study)

    @property
    def without_configs(self) -> set[Problem]:
        """Return the problems of which at least one space was enumerated, and none has a config."""
        with_configs = {space.problem for space in self._enumerated if space.configs}
        return {space.problem for space in self._enumerated} - with_configs

    def studies_of(self, kernel: Kernel) -> Sequence[SpaceStudy]:
        """Return the studies whose spaces have kernels of a kernel's family, dtype and epilogue."""
        return self._by_group.get(kernel_group(kernel), ())

    @property
    def max_trials(self) -> int:
        """Return the number of configs that may be tried for a problem."""
        return self._options.trials if self._choice.is_bounded else sys.maxsize

    def lowest_cost_kernels(self) -> list[Kernel]:
        """Return the kernels with the lowest predicted costs, for each problem as many as may be tried."""
        num_families = Counter(study.space.problem for study in self.studies)
        kernels: dict[Kernel, None] = {}
        for space in (study.space for study in self.studies):
            share = ceil_div(self.max_trials, num_families[space.problem])
            kernels |= dict.fromkeys(self._lowest_cost(space, min(share, len(space.configs))))
        return list(kernels)

    def launches(self, problem: Problem, kernel: Kernel) -> list[dict[str, int]]:
        """Return the launch values to time for a problem; none if the kernel does not fit it."""
        found, arch = family(kernel.family), self._options.arch
        if found.why_unfit(problem, kernel.values, arch):
            return []
        names = [parameter.name for parameter in found.launch_parameters]
        return [{name: launch[name] for name in names} for launch in found.launches(problem, kernel.values, arch)]

    def tell_failure(self, kernel: Kernel) -> None:
        """Tell the studies why a kernel does not compile.

        Before the studies exist nothing is told: `tell_known` finds the failure among the builder's rows.
        """
        builder = self._builder
        error = builder.rows[kernel].error if kernel in builder.rows else builder.skipped[kernel]
        for study in self.studies_of(kernel):
            study.tell(kernel.values, None, error)

    def tell_known(self, device: Device) -> None:
        """Tell the studies the results of the database.

        Only results of kernels whose source is unchanged count. The configs of the fastest outdated kernels are tried
        first, and then the kernels that need no compiler and were the fastest on the most similar problems.
        """
        kernel_by_id = {row.id: kernel for kernel, row in self._builder.rows.items()}
        for study in self.studies:
            space = study.space
            measured = self._store.measurements(device, str(space.problem))
            known: dict[Kernel, list[Measurement]] = {
                kernel: [] for kernel, row in self._builder.rows.items() if row.error and space.contains(kernel)
            }
            errors = {kernel: row.error for kernel, row in self._builder.rows.items() if kernel in known}
            for row in measured:
                if row.kernel_id in kernel_by_id and space.contains(kernel_by_id[row.kernel_id]):
                    kernel = kernel_by_id[row.kernel_id]
                    known.setdefault(kernel, []).append(row)
                    errors[kernel] = errors.get(kernel) or row.error
            outdated = self._outdated_configs(space, [row for row in measured if row.kernel_id not in kernel_by_id])
            study.enqueue([*outdated, *self._reusable_configs(space)])
            unfinished = self._unfinished(space.problem, known)
            for kernel, rows in known.items():
                if kernel not in unfinished:
                    self._tell(study, kernel, rows, errors[kernel])

    def _unfinished(self, problem: Problem, known: Mapping[Kernel, Sequence[Measurement]]) -> set[Kernel]:
        """Return the kernels that are tried again: those with launches that were not tried, unless the first was slow.

        Args:
            problem: The problem.
            known: The trials of each kernel on it.
        """
        first_us: dict[Kernel, float] = {}
        missing: list[Kernel] = []
        for kernel, rows in known.items():
            launches = [launch_text(launch) for launch in self.launches(problem, kernel)] if rows else []
            if not {launch_text(row.launch) for row in rows}.issuperset(launches):
                missing.append(kernel)
            times = [row.median_us for row in rows if row.median_us and launch_text(row.launch) in launches[:1]]
            if times:
                first_us[kernel] = min(times)
        slow_us = AGAIN * min(first_us.values(), default=math.inf)
        return {kernel for kernel in missing if first_us.get(kernel, 0.0) <= slow_us}

    def tell_measured(self, study: SpaceStudy, kernel: Kernel, trials: Sequence[Result | Measurement]) -> None:
        """Tell a study the best of a kernel's trials, or why all of them failed."""
        error = next((trial.error for trial in trials if trial.error), "no launch values fit the problem")
        self._tell(study, kernel, trials, error)

    def _tell(
        self, study: SpaceStudy, kernel: Kernel, trials: Sequence[Result | Measurement], error: str | None
    ) -> None:
        """Tell a study those of a kernel's trials that no other dominates, or the error if all of them failed."""
        names, problem = self._options.objectives, study.space.problem
        found = [
            (values, is_pruned(trial.samples_us))
            for trial in trials
            if (values := objective_values(names, problem, trial.median_us, trial.details))
        ]
        if not found:
            study.tell(kernel.values, None, error)
            return
        (best, pruned), *others = (found[i] for i in pareto_front([values for values, _ in found]))
        study.tell(kernel.values, best, is_pruned=pruned, others=[values for values, _ in others])

    def recorded(self, device: Device, problem: Problem, row: KernelRow) -> list[Measurement]:
        """Return a kernel's recorded trials on a problem, with any launch values."""
        return [m for m in self._store.measurements(device, str(problem)) if m.kernel_id == row.id]

    def _spaces(self) -> Iterator[Space]:
        """Yield the space of each problem and family, a family of each problem first, then another of each."""
        if self._given_spaces is not None:
            yield from self._given_spaces
            return
        options = self._options
        wanted = [self._families(problem) for problem in self._problems]
        for turn in zip_longest(*wanted):
            for problem, found in zip(self._problems, turn, strict=True):
                if found is not None:
                    space = self._space(problem, found)
                    yield space.truncate(options.limit, options.seed) if options.limit else space

    def _space(self, problem: Problem, found: AnyFamily) -> Space:
        arch, allow = self._options.arch, self._options.allow
        with timeline.span(timeline.Lane.SEARCH, f"enumerate: {problem.short_name} {found.name}") as told:
            # Equal configs of all spaces are one object: a large run has millions of configs, and few that differ.
            configs = [
                self._configs.setdefault((found.name, *config.values()), config)
                for config in found.configs_for(problem, arch, allow)
            ]
            told["configs"] = len(configs)
            return Space.ranked(problem, found.name, configs, [found.cost(problem, config, arch) for config in configs])

    def _families(self, problem: Problem) -> list[AnyFamily]:
        """Return the families to search for a problem, that with the fewest architectures first."""
        options = self._options
        found = serving(problem, options.arch)
        wanted = [one for one in found if one.name in options.only or not options.only]
        return sorted(wanted, key=lambda one: len(one.architectures))

    def _lowest_cost(self, space: Space, count: int) -> list[Kernel]:
        """Return kernels of a space with low predicted costs that are unlike each other."""
        return [space.kernel(space.configs[i], self._options.target) for i in spread(space, count)]

    def _outdated_configs(self, space: Space, measured: Sequence[Measurement]) -> list[Config]:
        """Return the configs of a space whose outdated kernels were the fastest."""
        rows = [row for row in measured if row.status == "ok" and row.kernel.family == space.family]
        kernels = dict.fromkeys(kernel_of(row.kernel) for row in ranking.ranked(rows))
        target = self._options.target
        return [k.values for k in kernels if k and k.target == target and space.contains(k)][:MAX_OUTDATED]

    def _reusable_configs(self, space: Space) -> list[Config]:
        """Return configs whose kernels need no compiler: in turn the fastest of each of the most similar problems."""
        near = sorted(self._others, key=lambda other: -problem_similarity(space.problem, other))
        rankings = [
            [kernel for kernel, _ in self._others[other] if space.contains(kernel)]
            for other in near
            if type(other) is type(space.problem)
        ]
        turns = zip_longest(*[ranking for ranking in rankings if ranking][:NUM_NEAREST])
        kernels = dict.fromkeys(kernel for turn in turns for kernel in turn if kernel)
        arch = self._options.arch
        fit = (k for k in kernels if not family(k.family).why_unfit(space.problem, k.values, arch))
        return [kernel.values for kernel in islice(fit, MAX_REUSED)]

    def _other_problems(self) -> dict[Problem, _Ranking]:
        """Return the kernels and times of problems outside the run that share a kind of kernel with one inside."""
        searched, kinds = set(self._problems), {kind_of(str(problem)) for problem in self._problems}
        found: dict[Problem, _Ranking] = {}
        kernels = {row.id: kernel for kernel, row in self._builder.rows.items() if not row.error}
        for device in self._store.devices():
            for text in self._store.problem_texts() if device.target == self._options.target else []:
                problem = parsed(text) if kind_of(text) in kinds else None
                if problem and problem not in searched:
                    best: dict[Kernel, float] = {}
                    for row in self._store.ranking(device, text):
                        if row.kernel_id in kernels and row.median_us:
                            best.setdefault(kernels[row.kernel_id], row.median_us)
                    found.setdefault(problem, list(best.items()))
        for problem, times in (self._foreign.rankings if self._foreign else {}).items():
            found.setdefault(problem, times)
        return {problem: times for problem, times in found.items() if times}

    def _other_spaces(self, searched: Collection[str]) -> Iterator[KnownTimes]:
        """Yield what was measured on the other problems that are the most similar to one of the run, as spaces."""
        arch = self._options.arch
        near = sorted(
            (problem for problem in self._others if problem not in self._problems),
            key=lambda other: -max(problem_similarity(problem, other) for problem in self._problems),
        )
        for problem in near[:MAX_OTHER_PROBLEMS]:
            by_family: dict[str, list[tuple[Kernel, float]]] = {}
            for kernel, us in self._others[problem]:
                if kernel.family in searched:
                    by_family.setdefault(kernel.family, []).append((kernel, us))
            for name, times in by_family.items():
                configs = [kernel.values for kernel, _ in times]
                costs = [family(name).cost(problem, config, arch) for config in configs]
                yield Space.ranked(problem, name, configs, costs), [(kernel.values, us) for kernel, us in times]


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
