"""RunSetup, the parts that a tuning run is given, and RunContext, which adds its devices and queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from autotune.core import Deadline
from autotune.ir import Network, Problem
from autotune.measure import Worker
from autotune.tuner.foreign_kernels import ForeignKernels
from autotune.tuner.kernel_builder import KernelBuilder
from autotune.tuner.library_candidates import LibraryCandidates, operator_rows
from autotune.tuner.progress import Progress
from autotune.tuner.request import TunerOptions
from autotune.tuner.study_manager import StudyManager
from autotune.tuner.time_shares import LayerWeights, Phases, TimeBreakdown
from autotune.tuner.trials import BackgroundPool, DeviceQueues, WantedTrial, is_tried_apart
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
