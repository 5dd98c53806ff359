"""The tuning run: build, verify, time and record candidates until the trials or the time run out.

A run has phases (time_shares.py): the search, the finals and, for a network on a GPU, settling. A phase starts nothing
new after its deadline. At the deadline of the run even what is under way is given up: compilers and the measuring
process are ended. Problems are taken in the order of their weights, so a run that ends early has worked where it counts
most.

Every trial is committed as it ends. A run begins with what the database holds, so an interrupted run continues where it
was. A compiled kernel serves every problem with its dtype and epilogue, and is timed on those whose study wants it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from autotune.codegen import BuildBatch, StartBatch, toolchain
from autotune.core import NEVER, Deadline, OutOfTimeError
from autotune.core.errors import Fault, forget_faults, record_fault
from autotune.ir import Network, Problem
from autotune.measure import Worker
from autotune.search import Space
from autotune.tuner.finals import Finals
from autotune.tuner.kernel_builder import ForeignKernels, KernelBuilder
from autotune.tuner.plan import Settling
from autotune.tuner.progress import Progress
from autotune.tuner.request import TunerOptions
from autotune.tuner.run_context import RunSetup, started
from autotune.tuner.search import FirstTrials, Search
from autotune.tuner.study_manager import StudyManager
from autotune.tuner.time_shares import FINALS, SEARCH, SETTLING, LayerWeights, Phases, TimeBreakdown
from tuning_db import Store
from tuning_db.schema import Device


class Tuner:
    """One run over some problems.

    Args:
        store: The database.
        problems: The problems; without networks, the weight of one is the number of times that it occurs.
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
        self.store, self.options, self.networks, self.progress = store, options, networks, progress
        given = list(problems)
        self.problems = list(dict.fromkeys(given))
        planned = [network for network in networks if options.arch.is_cuda or network.whole]
        phases = [SEARCH, FINALS, SETTLING] if planned else [SEARCH, FINALS]
        self.phases = Phases(deadline, phases if workers else [SEARCH])
        self.out_of_time = False
        self.device: Device | None = None
        self.breakdown = TimeBreakdown(max(1, len(workers)))
        self.builder = KernelBuilder(
            store,
            options.target,
            options.jobs,
            self.breakdown,
            progress,
            known=foreign.kernels if foreign else {},
            start_batch=start_batch,
        )
        best_us: dict[Problem, float] = {}
        weights = LayerWeights(given, networks, best_us.get)
        self.study_manager = StudyManager(store, weights.sorted(), options, self.builder, spaces, foreign)
        self._setup = RunSetup(
            store=store,
            options=options,
            problems=self.problems,
            networks=networks,
            planned=planned,
            workers=list(workers),
            foreign=foreign,
            progress=progress,
            breakdown=self.breakdown,
            phases=self.phases,
            best_us=best_us,
            weights=weights,
            builder=self.builder,
            study_manager=self.study_manager,
        )

    def run(self) -> None:
        """Search every problem, time its finalists, and tune the plans of the networks.

        A run whose deadline passes ends without an error; what it has recorded is kept.

        Raises:
            ToolchainError: There is no compiler for the target.
            WorkerError: The measuring process cannot be started.
            DatabaseError: The database cannot be read or written.
        """
        toolchain.for_target(self.options.target)  # without a compiler, fail before anything else
        forget_faults()
        record_fault(Fault.TUNER_DIED, self.store.remove_abandoned_claims())
        self.progress.total(len(self.problems))
        if not self._setup.workers:
            self._compile_only()
            return
        with ExitStack() as processes:
            try:
                self._run_phases(processes)
            except OutOfTimeError:
                self.out_of_time = True

    def _run_phases(self, processes: ExitStack) -> None:
        with started(self._setup, processes) as run:
            self.device = run.device
            copied_plans = FirstTrials(run).run()
            Search(run).run()
        for problem in self.problems:
            self.progress.done(str(problem))
        Finals(run).run()
        if run.planned:
            Settling(run, copied_plans).run()
        else:
            run.beside.wait(self.phases.current)

    def _compile_only(self) -> None:
        """Compile the configs with the lowest predicted costs, where nothing can be timed."""
        with self.builder:
            self._setup.load_database()
            self.progress.stage("compiling the kernels with the lowest predicted costs")
            self.study_manager.enumerate(self.phases.begin(SEARCH))
            self.study_manager.create_studies()
            self.builder.build(self.study_manager.lowest_cost_kernels())
            while self.builder.ready(True, self.phases.current) and not self.phases.current.is_over:
                pass
