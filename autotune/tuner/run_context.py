"""The start of a tuning run: the parts that it is given, its processes and devices, and what the database holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from autotune.core import Deadline, DeviceFacts, WorkerError, paths
from autotune.ir import Network, Problem
from autotune.libraries import cudnn
from autotune.measure import Worker
from autotune.tuner.kernel_builder import ForeignKernels, KernelBuilder
from autotune.tuner.machines import facts_in_background, in_thread, start_in_background
from autotune.tuner.progress import Progress
from autotune.tuner.request import TunerOptions
from autotune.tuner.study_manager import StudyManager
from autotune.tuner.time_shares import SEARCH, LayerWeights, Phases, TimeBreakdown
from autotune.tuner.trials import (
    BackgroundPool,
    DeviceQueues,
    WantedTrial,
    is_tried_apart,
    known_times,
    num_cores,
    workers_beside,
)
from autotune.tuner.trials.library_trials import LibraryCandidates, listing_workers, operator_rows
from tuning_db import Store
from tuning_db.schema import Device, KernelRow


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """The parts that a run is given.

    Attributes:
        store: The database.
        options: Limits and choices.
        problems: The problems, each once.
        networks: The networks that they belong to.
        planned: Those of the networks whose plans are tuned.
        workers: The measuring processes, one for each device.
        foreign: Kernels of other databases.
        progress: Receives events.
        breakdown: Receives the times.
        phases: The phases of the run.
        best_us: The best time of each problem that has one, in microseconds.
        weights: Shares of the problems in the time of the networks.
        builder: The kernels.
        study_manager: The studies.
    """

    store: Store
    options: TunerOptions
    problems: Sequence[Problem]
    networks: Sequence[Network]
    planned: Sequence[Network]
    workers: Sequence[Worker]
    foreign: ForeignKernels | None
    progress: Progress
    breakdown: TimeBreakdown
    phases: Phases
    best_us: dict[Problem, float]
    weights: LayerWeights
    builder: KernelBuilder
    study_manager: StudyManager

    def load_database(self) -> None:
        """Store the problems and load the kernels that exist."""
        self.progress.stage("reading the database")
        for problem in self.problems:
            self.store.put_problem(str(problem))
        self.builder.load()


@dataclass(frozen=True, kw_only=True)
class RunContext(RunSetup):
    """A run whose devices are known.

    Attributes:
        device: The database's row of the devices.
        is_new: Whether the database had no device before.
        queues: The trials of the devices.
        beside: The trials beside the search.
        listed: The plans that cuDNN lists; None where they are not wanted.
        enumerated: Is done when the spaces are enumerated.
    """

    device: Device
    is_new: bool
    queues: DeviceQueues
    beside: BackgroundPool
    listed: LibraryCandidates | None
    enumerated: Future[None]

    def operator_rows(self, problem: Problem) -> Iterator[KernelRow]:
        """Yield the rows of PyTorch's operators for a problem, then those of what Inductor compiles."""
        version = self.device.details["torch"]
        return operator_rows(self.store, problem, self.options.target, version, self.options.inductor)

    def time_operators(self, problems: Iterable[Problem], until: Deadline) -> None:
        """Time PyTorch's operators of some problems, as far as there is time; those that were timed are left out."""
        for problem in problems:
            if until.is_over:
                break
            for row in self.operator_rows(problem):
                if not (until.is_over or is_tried_apart(problem, row, self.networks, self.options)):
                    self.queues.submit(WantedTrial(problem, row))
        self.queues.drain()


@contextmanager
def started(setup: RunSetup, processes: ExitStack) -> Iterator[RunContext]:
    """Start the search of a run, and yield its context once the devices are known.

    Compilers, the start of the measuring processes (some seconds), the enumeration of spaces and the processes that
    list cuDNN's plans go on in the background until the exit. So do the trials of what Inductor compiles, on a GPU.

    Args:
        setup: What the run is made with.
        processes: Ends the processes of these trials, which outlast the search.

    Raises:
        WorkerError: The devices differ, or a measuring process cannot be started.
    """
    until = setup.phases.begin(SEARCH)
    besides = workers_beside(setup.workers, setup.networks, setup.options)
    processes.enter_context(start_in_background(list(besides.values())))
    setup.builder.reserved = num_cores(setup.networks, setup.options) if besides else 0
    with facts_in_background(setup.workers) as facts, setup.builder, _list_library_plans(setup) as listed:
        setup.load_database()
        with in_thread(partial(setup.study_manager.enumerate, until)) as enumerated:
            setup.progress.stage("starting the measuring process" + ("es" if len(facts) > 1 else ""))
            is_new = not setup.store.devices()
            device = _put_device(setup.store, facts)
            setup.weights.set_device(device)
            weights = setup.weights.all()
            setup.best_us.update(known_times(setup.store, device, setup.problems))
            pool = BackgroundPool(
                setup.store, device, setup.options, besides, setup.progress, setup.weights.sorted(), setup.networks
            )
            yield RunContext(
                **vars(setup),
                device=device,
                is_new=is_new,
                queues=DeviceQueues(
                    setup.store, setup.workers, device, setup.breakdown, setup.progress, weights, setup.best_us
                ),
                beside=processes.enter_context(pool),
                listed=listed,
                enumerated=enumerated,
            )


def _list_library_plans(setup: RunSetup) -> AbstractContextManager[LibraryCandidates | None]:
    """List cuDNN's plans in the background, on a GPU where they are wanted.

    cuDNN compiles many of them, with one core per process: ten seconds a layer while compilers use the other cores.
    """
    options = setup.options
    if options.vendor != cudnn.FAMILY or not options.arch.is_cuda:
        return nullcontext()
    workers = listing_workers(setup.workers[0], options.jobs)
    return LibraryCandidates(setup.store, workers, setup.weights.sorted(), options.target)


def _put_device(store: Store, facts: Sequence[Future[DeviceFacts]]) -> Device:
    """Wait for the measuring processes, and store their device.

    Raises:
        WorkerError: They have different devices.
    """
    found = [future.result() for future in facts]
    if len(names := dict.fromkeys(one.name for one in found)) > 1:
        raise WorkerError(f"the devices differ, {' and '.join(names)}: tune one kind at a time, into one database")
    details = {**found[0].details, "processors": found[0].processors}
    store.put_environment({"autotune": paths.version(), **details})
    return store.put_device(
        found[0].name,
        found[0].target,
        flops_per_us=found[0].flops_per_us,
        bytes_per_us=found[0].bytes_per_us,
        details=details,
    )
