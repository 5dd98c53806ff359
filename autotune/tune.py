"""The whole loop: which candidates to try, built, verified, timed and recorded until trials or time run out.

Every trial is committed as it ends. A run begins by reading what the database already holds, so a run that was
stopped goes on where it was. A compiled kernel serves every problem with its epilogue, and is timed for those whose
search wants it.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from autotune import paths, toolchain
from autotune.arch import Architecture
from autotune.build import together
from autotune.device import DeviceFacts
from autotune.families import family, serving
from autotune.families.base import Config, Kernel
from autotune.ledger import Ledger
from autotune.objective import DEFAULT as BY_TIME
from autotune.objective import value
from autotune.problem import Convolution, Problem
from autotune.progress import Progress
from autotune.result import Result
from autotune.search import DEFAULT, Space, Study, strategy
from autotune.search.schedule import Schedule
from autotune.search.space import spread
from autotune.settle import settle_network
from autotune.trials import Trials
from autotune.vendor import aten, cudnn
from autotune.vendor_rows import Listing, operator_rows
from autotune.worker import Worker
from autotune.workshop import Workshop, kernel_of
from fused_resnet.candidates import candidate
from fused_resnet.graph import Network
from fused_resnet.selection import shortlist
from tuning_db import Store, ties
from tuning_db.schema import Device, KernelRow, Measurement

FINALISTS = 6
PLANS = 3
"""Plans of cuDNN that are finalists beside them."""
FINAL_ROUNDS = 15
LISTERS = 4
"""Processes that list cuDNN's plans, at most."""
OLDER = 3
"""Kernels of another text than today's, the fastest of a problem and family, whose configs are tried first."""
TRIAL_SECONDS = 0.05
"""Of verifying and timing a config, about."""


@dataclass(frozen=True)
class Options:
    """trials: configs that may be tried for one problem; budget: seconds for the search; jobs: compilers at once.

    allow: names of families.base.PERMISSIONS. only: names of the families that may try; if empty, all but those that
    must be named. strategy: of search.STRATEGIES.
    limit: most configs in a family's space for a problem; 0: all that are legal.
    gain: a search rests where it expects less than this share of the best time from any config.
    objectives: of objective.OBJECTIVES.
    vendor: whose plans are candidates on a GPU: "cudnn" or "none".
    """

    arch: Architecture
    target: str
    trials: int
    budget: float
    jobs: int
    seed: int = 0
    allow: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    strategy: str = DEFAULT
    limit: int = 0
    gain: float = 0.01
    objectives: tuple[str, ...] = BY_TIME
    vendor: str = cudnn.FAMILY


class Tuning:
    """One run over some problems. Without a worker it compiles the prior's best and times nothing."""

    def __init__(
        self, store: Store, problems: Iterable[Problem], options: Options, worker: Worker | None, progress: Progress
    ) -> None:
        self.store, self.options, self.worker, self.progress = store, options, worker, progress
        self.problems = list(dict.fromkeys(problems))
        self.deadline = time.monotonic() + options.budget
        self.ledger = Ledger()
        self._begun: set[tuple[Study, Kernel]] = set()  # two studies may ask for one kernel
        self._elsewhere: list[tuple[Study, Kernel]] = []
        self._facts: Future[DeviceFacts] | None = None
        self._plans: Listing | None = None
        self._without_plans: set[str] = set()
        self.workshop = Workshop(store, options.target, options.jobs, self.ledger, progress, self._failed)

    def run(self) -> None:
        """Search every problem, then settle between finalists. Raises ToolchainError, WorkerError, DatabaseError."""
        toolchain.for_target(self.options.target)  # without a compiler, say so before anything else
        self.progress.total(len(self.problems))
        self.progress.stage("reading what is known")
        with ThreadPoolExecutor(1) as beside, self.workshop, self._listing() as self._plans:
            if self.worker and "device" not in vars(self):
                self._facts = beside.submit(self.worker.facts)  # it takes seconds to start
            for problem in self.problems:
                self.store.put_problem(str(problem))
            self.workshop.recall()
            if self.worker is None:
                self.progress.stage("compiling the prior's best")
                self._compile_only()
                return
            schedule = Schedule(self.studies, self, self.options.target, self._trials)
            if not self.store.devices():
                schedule.begin()  # nothing is known that could change what is asked for first
            self.progress.stage("starting the device's process")
            _ = self.device
            self._recall()
            schedule.begin()
            self.progress.stage("timing torch's operators")
            self._time_torch()
            self.progress.stage("searching")
            schedule.run()
            if self._plans and not self._plans.is_done:
                self.progress.stage("listing the last of cuDNN's plans")
            self._time_plans(wait=True)
            self._complete()
            self._finish_elsewhere()
        for problem in self.problems:
            self.progress.done(str(problem))
        self.progress.stage("settling between finalists")
        for problem in self.problems:
            self._settle(problem)

    def settle_inside(self, network: Network) -> None:
        """On a GPU, choose between the finalists of a tuned network's layers once more, inside its CUDA graph."""
        if self.worker and self.options.arch.is_cuda:
            self.progress.stage("settling inside the network")
            with self.ledger.charge("time"):
                settle_network(self.store, self.device, self.worker, network)

    @cached_property
    def device(self) -> Device:
        """The device's row; measures its limits the first time."""
        assert self.worker
        facts = self._facts.result() if self._facts else self.worker.facts()
        details = {**facts.details, "processors": facts.processors}
        self.store.put_environment({"autotune": paths.version(), **details})
        return self.store.put_device(
            facts.name,
            facts.target,
            flops_per_us=facts.flops_per_us,
            bytes_per_us=facts.bytes_per_us,
            details=details,
        )

    @cached_property
    def trials(self) -> Trials:
        """What is tried on the device."""
        assert self.worker
        return Trials(self.store, self.worker, self.device, self.ledger, self.progress)

    @cached_property
    def studies(self) -> list[Study]:
        """A search for each problem and family that serves it; of those that must be named, the named ones."""
        options, chosen = self.options, strategy(self.options.strategy)
        spaces: list[Space] = []
        early: dict[Kernel, float] = {}  # what will be asked for first -> its share of a unit
        ahead = self.worker is not None and not self.store.devices()  # compilers begin while spaces are enumerated
        for space in self._spaces():
            spaces.append(space)
            if ahead:
                best = self._prior_best(space, min(chosen.first, options.trials))
                early |= dict.fromkeys(best, 1 / together(space.family))
                if sum(early.values()) >= options.jobs:
                    self.workshop.make(list(early))
                    ahead = False
        return chosen.studies(spaces, options.seed, options.gain)

    def _spaces(self) -> Iterator[Space]:
        """The configs of each problem and family."""
        options = self.options
        for problem in self.problems:
            for found in serving(problem, options.arch):
                if found.name not in options.only and (options.only or found.by_name):
                    continue
                configs = found.configs_for(problem, options.arch, options.allow)
                costs = [found.cost(problem, config, options.arch) for config in configs]
                space = Space.ranked(problem, found.name, configs, costs)
                yield space.cut(options.limit, options.seed) if options.limit else space

    def _prior_best(self, space: Space, count: int) -> list[Kernel]:
        """The kernels of a space that the prior thinks best, unlike each other."""
        return [space.kernel(space.configs[i], self.options.target) for i in spread(space, count)]

    def _trials(self, _: Problem) -> int:
        return self.options.trials if strategy(self.options.strategy).bounded else sys.maxsize

    def _failed(self, kernel: Kernel) -> None:
        """Tell what would not compile; studies that are still being made find it among what is known."""
        for study in vars(self).get("studies", ()):
            if study.space.serves(kernel):
                study.tell(kernel.values, None)

    def _recall(self) -> None:
        """Tell the studies what the database holds of kernels that would be made again as they are.

        Of others, made from another text, only that they were fast.
        """
        by_id = {row.id: kernel for kernel, row in self.workshop.rows.items()}
        for study in self.studies:
            space = study.space
            measured = self.store.measurements(self.device, str(space.problem))
            best: dict[Kernel, float | None] = {
                kernel: None for kernel, row in self.workshop.rows.items() if row.error and space.serves(kernel)
            }
            tried: dict[Kernel, list[dict[str, int]]] = {}
            for row in measured:
                if row.kernel_id in by_id and space.serves(by_id[row.kernel_id]):
                    kernel, found = by_id[row.kernel_id], self._value(space.problem, row.median_us, row.details)
                    tried.setdefault(kernel, []).append(row.launch)
                    best[kernel] = min((v for v in (best.get(kernel), found) if v is not None), default=None)
            study.suggest(self._once_fast(space, [row for row in measured if row.kernel_id not in by_id]))
            for kernel, known in best.items():
                if kernel not in tried or all(
                    launch in tried[kernel] for launch in self._launches(space.problem, kernel)
                ):
                    study.tell(kernel.values, known)  # of others a run was stopped between two launch values

    def _once_fast(self, space: Space, measured: Sequence[Measurement]) -> list[Config]:
        """The configs of a space that did best as kernels of another text."""
        mine = [row for row in measured if row.status == "ok" and row.kernel.family == space.family]
        kernels = dict.fromkeys(kernel_of(row.kernel) for row in ties.ranked(mine))
        target = self.options.target
        return [k.values for k in kernels if k and k.target == target and space.serves(k)][:OLDER]

    def _value(self, problem: Problem, us: float | None, details: Mapping[str, Any]) -> float | None:
        return value(self.options.objectives, problem, us, details)

    def _compile_only(self) -> None:
        """Make the prior's best, where nothing can be timed."""
        families = Counter(study.space.problem for study in self.studies)
        kernels: dict[Kernel, None] = {}
        for space in (study.space for study in self.studies):
            count = min(math.ceil(self._trials(space.problem) / families[space.problem]), len(space.configs))
            kernels |= dict.fromkeys(self._prior_best(space, count))
        self.workshop.make(list(kernels))
        while self.workshop.ready(wait=True):
            pass

    # -- the bench of the schedule ---------------------------------------------------------------------------

    def time_left(self) -> bool:
        """Whether the budget allows more."""
        return time.monotonic() < self.deadline

    def room(self) -> int:
        """Cores that would compile at once."""
        return self.workshop.room()

    def seconds(self, kernel: Kernel) -> float:
        """What a trial would cost: compiling on one of all cores, unless that was done, and some milliseconds."""
        if kernel in self.workshop.rows:
            return TRIAL_SECONDS
        return TRIAL_SECONDS + sum(family(kernel.family).compile_seconds) / self.options.jobs

    def compile(self, kernels: Sequence[Kernel], choosing: float) -> None:
        """Begin to make kernels; choosing: the seconds that it took to choose them."""
        self.ledger.add({"search": choosing})
        self.workshop.make(kernels, choosing)

    def ready(self, wait: bool) -> list[Kernel]:
        """Kernels that became ready; plans of cuDNN that did are tried at once."""
        self._time_plans(wait=False)
        return self.workshop.ready(wait)

    def measure(self, kernels: Sequence[Kernel]) -> None:
        """Verify and time kernels on the problems whose studies want them, for all launch values, and tell these.

        What another process is trying is left to it, and looked at again when there is nothing else to do.
        """
        for study in self.studies:
            for kernel in kernels:
                wanted = study.space.serves(kernel) and study.wants(kernel.values)
                if wanted and (study, kernel) not in self._begun:
                    if not self._begin(study, kernel):
                        self._elsewhere.append((study, kernel))
                    self._begun.add((study, kernel))
            if not self.time_left():
                return

    def finish(self) -> bool:
        """Record what is still being measured; whether there was anything."""
        return self.trials.finish()

    def _complete(self) -> None:
        """Try the prior's best for every problem that time left without any: else its layer could not be chosen.

        Of the family that is for the fewest architectures: it is likely to make most of this one.
        """
        tried = {study.space.problem for study in self.studies if study.told}
        missing: dict[Problem, tuple[Study, Kernel]] = {}
        for study in sorted(self.studies, key=lambda study: len(family(study.space.family).architectures)):
            if study.total and study.space.problem not in tried:
                kernel = study.space.kernel(study.space.configs[0], self.options.target)
                missing.setdefault(study.space.problem, (study, kernel))
        kernels = {kernel for _, kernel in missing.values()}
        self.workshop.make(list(kernels))
        while kernels and (ready := self.workshop.ready(wait=True)):
            for study, kernel in missing.values():
                if kernel in ready:
                    self._begin(study, kernel)
            self.trials.finish()  # the device waits for compilers only when it has nothing to do
            kernels -= self.workshop.rows.keys()

    def _begin(self, study: Study, kernel: Kernel) -> bool:
        """Try what was not tried yet of a kernel on a study's problem; False if another process is trying it."""
        problem, row = study.space.problem, self.workshop.rows[kernel]
        launches = self._launches(problem, kernel)

        def done(results: Sequence[Result]) -> None:
            known = self._recorded(problem, row) if len(results) < len(launches) else []
            known += [self._value(problem, result.median_us, result.details) for result in results]
            study.tell(kernel.values, min((value for value in known if value is not None), default=None))

        return self.trials.begin(problem, row, launches, partial(self.workshop.spent, kernel), done)

    def _recorded(self, problem: Problem, row: KernelRow) -> list[float | None]:
        """What is known of a kernel on a problem, for any launch values."""
        measured = self.store.measurements(self.device, str(problem))
        return [self._value(problem, m.median_us, m.details) for m in measured if m.kernel_id == row.id]

    def _finish_elsewhere(self) -> None:
        """Wait for what other processes are trying; should one have died, its trials are ours."""
        while self._elsewhere and self.time_left():
            self._elsewhere = [(study, kernel) for study, kernel in self._elsewhere if not self._begin(study, kernel)]
            self.trials.finish()
            if self._elsewhere:
                time.sleep(0.05)

    # -- timing ----------------------------------------------------------------------------------------------

    def _launches(self, problem: Problem, kernel: Kernel) -> list[dict[str, int]]:
        """The launch values worth timing for a problem; none if the kernel does not fit it."""
        found, arch = family(kernel.family), self.options.arch
        if found.fits(problem, kernel.values, arch):
            return []
        names = [parameter.name for parameter in found.launch_parameters]
        return [{name: launch[name] for name in names} for launch in found.launches(problem, kernel.values, arch)]

    def _time_torch(self) -> None:
        for problem in self.problems:
            for row in operator_rows(self.store, problem, self.options.target, self.device.details["torch"]):
                self.trials.begin(problem, row, [{}])
        self.trials.finish()

    def _listing(self) -> AbstractContextManager[Listing | None]:
        """What lists cuDNN's plans beside the search, on a GPU where they are wanted.

        cuDNN compiles many of them, on one core a process: ten seconds a layer where compilers have the other cores.
        """
        if not self.worker or self.options.vendor != cudnn.FAMILY or not self.options.arch.is_cuda:
            return nullcontext()
        workers = [Worker(self.worker.device) for _ in range(max(1, min(LISTERS, self.options.jobs // 4)))]
        return Listing(self.store, workers, self.problems, self.options.target)

    def _time_plans(self, wait: bool) -> None:
        """Verify and time those plans of cuDNN that were listed meanwhile; say once why there are none."""
        for problem, rows, why in self._plans.ready(wait) if self._plans else ():
            if why and isinstance(problem, Convolution) and why not in self._without_plans:
                self._without_plans.add(why)
                self.progress.stage(why)
            for row in rows:
                if row.library:
                    self.trials.begin(problem, row, [{}])
        if wait:
            self.trials.finish()

    def _settle(self, problem: Problem) -> None:
        """Time the fastest few, and the best of torch's, in interleaved rounds; unless that was done for these."""
        assert self.worker
        timed = self.store.measurements(self.device, str(problem), "ok")
        ranked = ties.ranked(timed, finals_first=False)
        best_of_torch = [row for row in ranked if row.kernel.family == aten.FAMILY][:1]
        finalists = shortlist(ranked, FINALISTS, PLANS)
        finalists += [row for row in best_of_torch if row not in finalists]
        settled = {(row.kernel_id, str(row.launch)) for row in timed if row.final}
        if all((row.kernel_id, str(row.launch)) in settled for row in finalists):
            return
        candidates = [candidate(self.store, row.kernel, row.launch) for row in finalists]
        with self.ledger.charge("time"):
            results = self.worker.finals(problem, candidates, FINAL_ROUNDS)
        for row, chosen, result in zip(finalists, candidates, results, strict=True):
            if result.status == "ok":  # a failure of the whole round says nothing of any one of them
                self.trials.record(problem, row.kernel, chosen, result, final=True)
        self.progress.measured(str(problem), 0, self.store.best_us(self.device, str(problem)))
