"""The tuning run: build, verify, time and record candidates until the trials or the time run out.

A run has phases (phases.py): the search, the finals and, for a network on a GPU, settling. A phase starts nothing new
after its deadline. At the deadline of the run even what is under way is given up: compilers and the measuring process
are ended. Problems are taken in the order of their weights, so a run that ends early has worked where it counts most.

Every trial is committed as it ends. A run begins with what the database holds, so an interrupted run continues where it
was. A compiled kernel serves every problem with its dtype and epilogue, and is timed on those whose study wants it.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial

from autotune.codegen import BuildBatch, StartBatch, toolchain
from autotune.core import NEVER, Deadline, DeviceFacts, OutOfTimeError, WorkerError, faults, paths
from autotune.core.faults import Fault
from autotune.families import Kernel, family, serving
from autotune.ir import Network, Problem
from autotune.libraries import aten, cudnn
from autotune.measure import Worker
from autotune.search import Schedule, Space, is_large
from autotune.tuner.background_pool import (
    BackgroundPool,
    is_tried_apart,
    is_tried_last,
    is_whole,
    num_cores,
    workers_beside,
)
from autotune.tuner.copied_plans import CopiedPlan, copy_plan
from autotune.tuner.device_queues import DeviceQueues
from autotune.tuner.finals import Finals
from autotune.tuner.foreign_kernels import ForeignKernels
from autotune.tuner.kernel_builder import KernelBuilder
from autotune.tuner.kernel_trials import POLL_SECONDS, KernelTrials
from autotune.tuner.layer_weights import LayerWeights
from autotune.tuner.library_candidates import LibraryCandidates, listing_workers, operator_rows
from autotune.tuner.network_tuner import record_copied_plan
from autotune.tuner.options import TunerOptions
from autotune.tuner.phases import FINALS, SEARCH, SETTLING, Phases
from autotune.tuner.progress import Progress
from autotune.tuner.settling import Settling
from autotune.tuner.study_manager import StudyManager
from autotune.tuner.threads import facts_in_background, in_thread, start_in_background
from autotune.tuner.time_breakdown import TimeBreakdown
from autotune.tuner.trial_queue import WantedTrial, record_unfinished
from tuning_db import Store
from tuning_db.schema import Device, KernelRow

OPERATORS_SHARE = 0.3
"""Share of the search's time in which PyTorch's operators are timed, before anything else."""
LISTING_SHARE = 0.1
"""Share of the run in which a search that has ended waits for the rest of cuDNN's plans."""
OTHER_LAUNCHES_BATCH = 1
"""Kernels whose other launches are tried between two batches of kernels, in a large run."""
PLAN_BATCH = 1
"""cuDNN's plans that are timed between two batches of kernels; a kernel of ours is more often the fastest."""
TRIAL_SECONDS = 0.05
"""Typical time of verifying and timing a config."""


class Tuner:
    """One run over some problems.

    Args:
        store: The database.
        problems: The problems; without networks, one weighs the more the oftener it occurs.
        options: Limits and choices.
        workers: Time candidates, each on a device of its own; the devices are of one kind. Without any the run compiles
            the configs with the lowest predicted costs and times nothing.
        progress: Receives events.
        spaces: The spaces to search; None for those of all families that serve the problems.
        networks: The networks that the problems belong to, whose plans are tuned too, such as one model at several
            batch sizes; none for single problems.
        deadline: The deadline of the run.
        foreign: Kernels of other databases, which are tried before others are compiled.
        start_batch: Starts compilers; those of this machine, unless there are others.

    Attributes:
        device: The database's row of the devices; None until the run has started the measuring processes.
        builder: The kernels.
        study_manager: The studies.
        breakdown: Where the time went.
        weights: Shares of the problems in the time of the networks.
        phases: The phases of the run.
        out_of_time: Whether the deadline of the run has ended it.
    """

    def __init__(
        self,
        store: Store,
        problems: Iterable[Problem],
        options: TunerOptions,
        workers: Sequence[Worker],
        progress: Progress,
        spaces: Sequence[Space] | None = None,
        networks: Sequence[Network] = (),
        deadline: Deadline = NEVER,
        foreign: ForeignKernels | None = None,
        start_batch: StartBatch = BuildBatch,
    ) -> None:
        self.store, self.options, self.workers, self.progress = store, options, list(workers), progress
        given = list(problems)
        self.problems = list(dict.fromkeys(given))
        self.networks = networks
        self._planned = [network for network in networks if options.arch.is_cuda or network.whole]
        phases = [SEARCH, FINALS, SETTLING] if self._planned else [SEARCH, FINALS]
        self.phases = Phases(deadline, phases if self.workers else [SEARCH])
        self.out_of_time = False
        self.device: Device | None = None
        self.breakdown = TimeBreakdown(max(1, len(self.workers)))
        self.builder = KernelBuilder(
            store,
            options.target,
            options.jobs,
            self.breakdown,
            progress,
            on_failure=self._tell_failure,
            known=foreign.kernels if foreign else {},
            start_batch=start_batch,
        )
        self._trials: DeviceQueues | None = None
        self.weights = LayerWeights(given, networks, self._best_us)
        self.study_manager = StudyManager(store, self.weights.sorted(), options, self.builder, spaces, foreign)
        self._foreign = foreign
        self._copied_plans: dict[str, CopiedPlan] = {}
        self._library_candidates: LibraryCandidates | None = None
        self._beside: BackgroundPool | None = None
        self._plans: list[tuple[int, int, Problem, KernelRow]] = []  # a heap of cuDNN's plans to be timed
        self._num_plans = 0
        self._kernel_trials: KernelTrials  # once the measuring processes have started
        self._builds_early = False
        self._missing_plan_reasons: set[str] = set()

    def run(self) -> None:
        """Search every problem, time its finalists, and tune the plans of the networks.

        A run whose deadline passes ends without an error; what it has recorded is kept.

        Raises:
            ToolchainError: There is no compiler for the target.
            WorkerError: The measuring process cannot be started.
            DatabaseError: The database cannot be read or written.
        """
        toolchain.for_target(self.options.target)  # without a compiler, fail before anything else
        faults.clear()
        faults.record(Fault.TUNER_DIED, self.store.remove_abandoned_claims())
        self.progress.total(len(self.problems))
        if not self.workers:
            self._compile_only()
            return
        with ExitStack() as processes:
            try:
                self._search(processes)
                for problem in self.problems:
                    self.progress.done(str(problem))
                self._time_finalists()
                if self._planned:
                    self._tune_plans()
                elif self._beside:
                    self._beside.wait(self.phases.current)
            except OutOfTimeError:
                self.out_of_time = True

    # -- the phases of a run ---------------------------------------------------------------------------------

    def _compile_only(self) -> None:
        """Compile the configs with the lowest predicted costs, where nothing can be timed."""
        with self.builder:
            self._load_database()
            self.progress.stage("compiling the kernels with the lowest predicted costs")
            self.study_manager.enumerate(self.phases.begin(SEARCH))
            self.study_manager.create_studies()
            self.builder.build(self.study_manager.lowest_cost_kernels())
            while self.builder.ready(True, self.phases.current) and not self.phases.current.is_over:
                pass

    def _search(self, processes: ExitStack) -> None:
        """Search every problem.

        Compilers, the start of the measuring processes (some seconds) and the processes that list cuDNN's plans go on
        in the background. So do the trials of what Inductor compiles, on a GPU; their process outlasts the search.
        """
        self.phases.begin(SEARCH)
        besides = workers_beside(self.workers, self.networks, self.options)
        processes.enter_context(start_in_background(list(besides.values())))
        self.builder.reserved = num_cores(self.networks, self.options) if besides else 0
        with (
            facts_in_background(self.workers) as facts,
            self.builder,
            self._list_library_plans(self.workers[0]) as self._library_candidates,
        ):
            self._load_database()
            with in_thread(partial(self.study_manager.enumerate, self.phases.current)) as enumerated:
                self._start_devices(facts)
                self._start_background_trials(processes, besides)
                self._copy_plans()
                self.progress.stage("timing PyTorch's operators")
                self._time_operators(self._operators_first(), self.phases.current.share(OPERATORS_SHARE))
                self.progress.stage("enumerating configs")
                while not enumerated.done():
                    self._build_early()
                    time.sleep(POLL_SECONDS)
            schedule = self._create_schedule()
            self.progress.stage("searching")
            schedule.run()
            self._time_operators(self.weights.sorted(), self.phases.current)
            self._finish_library_plans()
            self._kernel_trials.finish_tried_elsewhere()

    def _load_database(self) -> None:
        """Store the problems and load the kernels that exist."""
        self.progress.stage("reading the database")
        for problem in self.problems:
            self.store.put_problem(str(problem))
        self.builder.load()

    def _create_schedule(self) -> Schedule:
        """Create the studies, and tell them what was measured on the device before."""
        device, _ = self._started()
        self.study_manager.create_studies()
        self.study_manager.tell_known(device)
        return Schedule(
            self.study_manager.studies, self, self.options.target, self.study_manager.max_trials, self.weights.recent
        )

    def _start_devices(self, facts: Sequence[Future[DeviceFacts]]) -> None:
        """Wait for the measuring processes, and store their device.

        Raises:
            WorkerError: They have different devices.
        """
        self.progress.stage("starting the measuring process" + ("es" if len(facts) > 1 else ""))
        self._builds_early = not self.store.devices()
        found = [future.result() for future in facts]
        if len(names := dict.fromkeys(one.name for one in found)) > 1:
            raise WorkerError(f"the devices differ, {' and '.join(names)}: tune one kind at a time, into one database")
        self.device = self._put_device(found[0])
        self.weights.set_device(self.device)
        self._trials = DeviceQueues(
            self.store, self.workers, self.device, self.breakdown, self.progress, self.weights.all()
        )
        self._kernel_trials = KernelTrials(
            self.study_manager,
            self.builder,
            self.device,
            self._trials,
            self.time_left,
            is_large(len(self.problems), self.options.jobs),
        )

    def _copy_plans(self) -> None:
        """Time and record plans of other databases or batch sizes for networks that have none in this database."""
        device, trials = self._started()
        for network in self._planned:
            if self.store.plan(device, network.key):
                continue
            plan = copy_plan(network, self.store, device, self._foreign, self.builder, trials, self.time_left)
            if plan:
                self.progress.stage("trying plans of other databases and batch sizes")
                self._copied_plans[network.key] = plan
        trials.drain()
        for network in self._planned:
            if copied := self._copied_plans.get(network.key):
                until, tell = self.phases.current, self.progress.note
                with self.breakdown.charge("time"):
                    record_copied_plan(self.store, device, self.workers[0], network, copied, until, tell)

    def _build_early(self) -> None:
        """In a new database, start the first compilers as soon as enough spaces are enumerated.

        Any measurement of a database could change what is asked for first.
        """
        if self._builds_early and (kernels := self.study_manager.first_kernels()):
            self.builder.build(kernels)
            self._builds_early = False

    def _put_device(self, facts: DeviceFacts) -> Device:
        details = {**facts.details, "processors": facts.processors}
        self.store.put_environment({"autotune": paths.version(), **details})
        return self.store.put_device(
            facts.name,
            facts.target,
            flops_per_us=facts.flops_per_us,
            bytes_per_us=facts.bytes_per_us,
            details=details,
        )

    def _operators_first(self) -> list[Problem]:
        """Return the problems whose operators are timed before the search: those that nothing else solves come first.

        On a GPU they are all, unless the options ask for the others. An operator takes cuDNN a fraction of a second to
        choose, and one that a kernel of ours replaces is seldom faster; their times wait for the end of the search.
        """
        served = {problem: bool(serving(problem, self.options.arch)) for problem in self.problems}
        first = sorted(self.weights.sorted(), key=served.__getitem__)
        waits = self.options.arch.is_cuda and not self.options.baseline_first
        return [problem for problem in first if not (waits and served[problem])]

    def _time_operators(self, problems: Iterable[Problem], until: Deadline) -> None:
        """Time PyTorch's operators of some problems, as far as there is time; those that were timed are left out."""
        _, trials = self._started()
        for problem in problems:
            if until.is_over:
                break
            self._build_early()
            for row in self._operator_rows(problem):
                if not (until.is_over or is_tried_apart(problem, row, self.networks, self.options)):
                    trials.submit(WantedTrial(problem, row))
        trials.drain()

    def _operator_rows(self, problem: Problem) -> Iterator[KernelRow]:
        device, _ = self._started()
        return operator_rows(self.store, problem, self.options.target, device.details["torch"], self.options.inductor)

    def _start_background_trials(self, processes: ExitStack, besides: Mapping[str, Worker]) -> None:
        """Start the trials beside the search, in processes that may still be starting."""
        device, _ = self._started()
        problems = self.weights.sorted()
        pool = BackgroundPool(self.store, device, self.options, besides, self.progress, problems, self.networks)
        self._beside = processes.enter_context(pool)

    def _time_finalists(self) -> None:
        """Time the finalists of all problems, the heaviest first, as far as there is time."""
        self.progress.stage("timing the finalists")
        device, trials = self._started()
        finals = Finals(self.store, device, trials, self.breakdown, self.progress, self.options.limits)
        # What was tried in the processes beside the search is compared there, when it is done.
        beside = self.options.arch.is_cuda
        problems = [one for one in self.weights.sorted() if not (beside and is_whole(one, self.networks))]
        finals.run(problems, self.phases.begin(FINALS))

    def _tune_plans(self) -> None:
        """Tune the plan of each network."""
        device, trials = self._started()
        assert self._beside
        settling = Settling(
            self.store,
            device,
            self.options.arch.is_cuda,
            trials.workers,
            self._beside,
            self.breakdown,
            self.progress,
            self._copied_plans,
            self._try_last,
        )
        settling.run(self._planned, self.phases.begin(SETTLING))

    def _try_last(self, network: Network) -> bool:
        """Try what is tried when the plan of a network is known; return whether there was anything."""
        device, trials = self._started()
        if network.whole is None:
            return False
        problem = network.whole.layers[0].problem
        rows = [row for row in self._operator_rows(problem) if is_tried_last(problem, row, [network], self.options)]
        if rows:
            self.progress.stage("compiling the network by Inductor")
        for row in rows:
            wanted = WantedTrial(problem, row, again=True)
            try:
                trials.submit(wanted)
                trials.drain()
            except OutOfTimeError:
                record_unfinished(self.store, device, wanted, self.workers[0].until)
                raise
        return bool(rows)

    # -- the schedule's bench (search.Bench) -----------------------------------------------------------------

    def time_left(self) -> bool:
        """Return whether the search may start more."""
        return not self.phases.current.is_over

    def idle_compilers(self) -> int:
        """Return the number of cores that would compile at once."""
        return self.builder.idle_cores()

    def compilers(self) -> int:
        """Return the number of compilers that run at a time."""
        return self.options.jobs

    def devices(self) -> int:
        """Return the number of devices that measure."""
        return len(self._started()[1].workers)

    def place(self, problem: Problem) -> int:
        """Return the number of the device that measures a problem."""
        return self._started()[1].place(problem)

    def rooms(self) -> list[int]:
        """Return how many candidates each device takes without a wait."""
        return self._started()[1].rooms()

    def exists(self, kernel: Kernel) -> bool:
        """Return whether a kernel is compiled, or is being compiled."""
        return self.builder.exists(kernel)

    def trial_seconds(self, kernel: Kernel) -> float:
        """Return the cost of a trial: its share of compiling on all cores, unless the kernel exists, and of timing."""
        if self.builder.exists(kernel):
            return TRIAL_SECONDS
        return TRIAL_SECONDS + sum(family(kernel.family).compile_seconds) / self.options.jobs

    def compile(self, kernels: Sequence[Kernel], search_seconds: float) -> None:
        """Start to build kernels; `search_seconds` is the time that choosing them took."""
        self.breakdown.add({"search": search_seconds})
        self.builder.build(kernels, search_seconds)

    def ready(self, wait: bool) -> list[Kernel]:
        """Return kernels that became ready. Try some of cuDNN's plans, and all that there is time for while waiting."""
        if self._beside:
            self._beside.advance()
            self.builder.reserved = 0 if self._beside.is_done else self.builder.reserved
        self._kernel_trials.try_other_launches(OTHER_LAUNCHES_BATCH)
        self._collect_library_plans()
        self._try_library_plans(PLAN_BATCH)
        while not (ready := self.builder.ready(wait and not self._plans, self.phases.current)):
            if not (wait and self._plans and self.time_left()):
                break
            self._try_library_plans(PLAN_BATCH)
        return ready

    def measure(self, kernels: Sequence[Kernel]) -> None:
        """Submit kernels for the problems whose studies want them.

        All launch values are tried; in a large run first one, and the others later if that was not slow. Trials that
        another process has claimed are left to it; their results are read at the end of the search.
        """
        self._kernel_trials.measure(kernels)

    def wait(self) -> None:
        """Wait a moment, in which a trial may end."""
        self._started()[1].wait()

    def finish(self) -> bool:
        """Record what is still being measured and tell the studies; return whether there was anything."""
        _, trials = self._started()
        drained, waited = trials.drain(), self.time_left() and self._kernel_trials.try_other_launches()
        return drained or waited

    # -- helpers ---------------------------------------------------------------------------------------------

    def _started(self) -> tuple[Device, DeviceQueues]:
        """Return the device and its trials; both exist once the measuring processes have started."""
        assert self.device and self._trials
        return self.device, self._trials

    def _tell_failure(self, kernel: Kernel) -> None:
        self.study_manager.tell_failure(kernel)

    def _list_library_plans(self, worker: Worker) -> AbstractContextManager[LibraryCandidates | None]:
        """List cuDNN's plans in the background, on a GPU where they are wanted.

        cuDNN compiles many of them, with one core per process: ten seconds a layer while compilers use the other cores.
        """
        if self.options.vendor != cudnn.FAMILY or not self.options.arch.is_cuda:
            return nullcontext()
        workers = listing_workers(worker, self.options.jobs)
        return LibraryCandidates(self.store, workers, self.weights.sorted(), self.options.target)

    def _collect_library_plans(self, until: Deadline | None = None) -> None:
        """Take over the cuDNN plans that were listed, and report each reason for missing plans once.

        Args:
            until: Wait for all of them until this deadline; None does not wait.
        """
        if self._library_candidates is None:
            return
        for problem, rows, reason in self._library_candidates.ready(until):
            if reason and isinstance(problem, aten.PASSES) and reason not in self._missing_plan_reasons:
                self._missing_plan_reasons.add(reason)
                self.progress.note(reason)
            for place, row in enumerate(row for row in rows if row.library):
                heapq.heappush(self._plans, (place, self._num_plans, problem, row))
                self._num_plans += 1

    def _try_library_plans(self, count: int) -> None:
        """Try some of cuDNN's plans as long as the search may start more.

        The first choice of cuDNN's heuristics for each problem comes first, then the second choice for each.
        """
        while count and self._plans and self.time_left():
            *_, problem, row = heapq.heappop(self._plans)
            self._started()[1].submit(WantedTrial(problem, row))
            count -= 1

    def _finish_library_plans(self) -> None:
        """Wait for the listing and try the plans, as far as there is time."""
        if self._library_candidates is None:
            return
        if not self._library_candidates.is_done:
            self.progress.stage("listing the remaining cuDNN plans")
        self._collect_library_plans(self.phases.waiting(LISTING_SHARE))
        self._try_library_plans(len(self._plans))
        self.finish()

    def _best_us(self, problem: Problem) -> float | None:
        """Return the best time of a problem that is known; None before the measuring processes have started."""
        return self._trials.best_us(problem) if self._trials else None
