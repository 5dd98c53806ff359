"""The whole loop: which candidates to try, built, verified, timed and recorded until trials or time run out.

Every trial is committed as it ends. A run begins by reading what the database already holds, so a run that was
stopped goes on where it was. A compiled kernel serves every problem with its epilogue, and is timed for those whose
search wants it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial

from autotune.codegen import toolchain
from autotune.core import DeviceFacts, paths
from autotune.families import family
from autotune.families.base import Kernel
from autotune.ir import Convolution, Network, Problem
from autotune.libraries import aten, cudnn
from autotune.measure import Result, Worker
from autotune.runtime import candidate, shortlist
from autotune.search import Schedule, Study
from autotune.tuner.kernel_builder import Workshop
from autotune.tuner.library_candidates import Listing, operator_rows
from autotune.tuner.network_tuner import tune_network_plan
from autotune.tuner.options import Options
from autotune.tuner.progress import Progress
from autotune.tuner.study_manager import Searches
from autotune.tuner.time_breakdown import Ledger
from autotune.tuner.trial_queue import Trials
from tuning_db import Store, launch_text, ranking
from tuning_db.schema import Device

FINALISTS = 6
PLANS = 3
"""Plans of cuDNN that are finalists beside them."""
FINAL_ROUNDS = 15
LISTERS = 4
"""Processes that list cuDNN's plans, at most."""
TRIAL_SECONDS = 0.05
"""Of verifying and timing a config, about."""


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
        self.searches = Searches(store, self.problems, options, self.workshop, timed=worker is not None)

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
            schedule = Schedule(self.searches.studies, self, self.options.target, self.searches.most)
            if not self.store.devices():
                schedule.begin()  # nothing is known that could change what is asked for first
            self.progress.stage("starting the device's process")
            _ = self.device
            self.searches.recall(self.device)
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
                tune_network_plan(self.store, self.device, self.worker, network)

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

    def _failed(self, kernel: Kernel) -> None:
        self.searches.failed(kernel)

    def _compile_only(self) -> None:
        """Make the prior's best, where nothing can be timed."""
        self.workshop.make(self.searches.untimed())
        while self.workshop.ready(wait=True):
            pass

    # -- the bench of the schedule ---------------------------------------------------------------------------

    def time_left(self) -> bool:
        """Whether the budget allows more."""
        return time.monotonic() < self.deadline

    def idle_compilers(self) -> int:
        """Cores that would compile at once."""
        return self.workshop.room()

    def trial_seconds(self, kernel: Kernel) -> float:
        """What a trial would cost: compiling on one of all cores, unless that was done, and some milliseconds."""
        if kernel in self.workshop.rows:
            return TRIAL_SECONDS
        return TRIAL_SECONDS + sum(family(kernel.family).compile_seconds) / self.options.jobs

    def compile(self, kernels: Sequence[Kernel], search_seconds: float) -> None:
        """Begin to make kernels; search_seconds: time that choosing them took."""
        self.ledger.add({"search": search_seconds})
        self.workshop.make(kernels, search_seconds)

    def ready(self, wait: bool) -> list[Kernel]:
        """Kernels that became ready; plans of cuDNN that did are tried at once."""
        self._time_plans(wait=False)
        return self.workshop.ready(wait)

    def measure(self, kernels: Sequence[Kernel]) -> None:
        """Verify and time kernels on the problems whose studies want them, for all launch values, and tell these.

        What another process is trying is left to it, and looked at again when there is nothing else to do.
        """
        for study in self.searches.studies:
            for kernel in kernels:
                wanted = study.space.contains(kernel) and study.wants(kernel.values)
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
        tried = {study.space.problem for study in self.searches.studies if study.num_observed}
        missing: dict[Problem, tuple[Study, Kernel]] = {}
        for study in sorted(self.searches.studies, key=lambda study: len(family(study.space.family).architectures)):
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
        launches = self.searches.launches(problem, kernel)

        def done(results: Sequence[Result]) -> None:
            known = self.searches.recorded(self.device, problem, row) if len(results) < len(launches) else []
            known += [self.searches.value(problem, result.median_us, result.details) for result in results]
            study.tell(kernel.values, min((value for value in known if value is not None), default=None))

        return self.trials.begin(problem, row, launches, partial(self.workshop.spent, kernel), done)

    def _finish_elsewhere(self) -> None:
        """Wait for what other processes are trying; should one have died, its trials are ours."""
        while self._elsewhere and self.time_left():
            self._elsewhere = [(study, kernel) for study, kernel in self._elsewhere if not self._begin(study, kernel)]
            self.trials.finish()
            if self._elsewhere:
                time.sleep(0.05)

    # -- timing ----------------------------------------------------------------------------------------------

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
        ranked = ranking.ranked(timed, finals_first=False)
        best_of_torch = [row for row in ranked if row.kernel.family == aten.FAMILY][:1]
        finalists = shortlist(ranked, FINALISTS, PLANS)
        finalists += [row for row in best_of_torch if row not in finalists]
        settled = {(row.kernel_id, launch_text(row.launch)) for row in timed if row.final}
        if all((row.kernel_id, launch_text(row.launch)) in settled for row in finalists):
            return
        candidates = [candidate(self.store, row.kernel, row.launch) for row in finalists]
        with self.ledger.charge("time"):
            results = self.worker.finals(problem, candidates, FINAL_ROUNDS)
        for row, chosen, result in zip(finalists, candidates, results, strict=True):
            if result.status == "ok":  # a failure of the whole round says nothing of any one of them
                self.trials.record(problem, row.kernel, chosen, result, final=True)
        self.progress.measured(str(problem), 0, self.store.best_us(self.device, str(problem)))
