"""The trials of kernels on the problems whose studies want them, with all launch values or with those left for later.

In a large run only those of kernels that may be the fastest are tried.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from autotune.core import Deadline
from autotune.families import Kernel
from autotune.ir import Problem
from autotune.measure import Result
from autotune.search import SpaceStudy
from autotune.tuner.kernel_builder import KernelBuilder
from autotune.tuner.study_manager import StudyManager
from autotune.tuner.trials.device_queues import DeviceQueues, WantedTrial
from tuning_db.schema import Device

PROMISING = 1.3
"""A kernel whose first launch takes more than this many times the best first launch gets no others. In a tune of
MobileNetV2 no other launch of such a kernel of sm90_conv2d was a new best."""


class FirstLaunch(Protocol):
    """A kernel whose first launch was tried."""

    def try_others(self) -> None:
        """Try its other launches."""

    def leave(self) -> None:
        """Try no more launches."""


class _Kernel(NamedTuple):
    """A kernel whose first launch was tried; those nearest to the best one come first."""

    ratio: float
    number: int
    us: float
    space: Hashable
    tried: FirstLaunch


class OtherLaunches:
    """Kernels whose first launch was tried and whose others wait.

    First launches are compared with each other, not with the best time of the problem: the first launch of a family may
    be slower than its others by the same factor for all kernels.
    """

    def __init__(self) -> None:
        self._best_us: dict[Hashable, float] = {}
        self._waiting: list[_Kernel] = []  # a heap
        self._num_added = 0

    def add(self, space: Hashable, us: float, tried: FirstLaunch) -> None:
        """Let a kernel wait, or leave it at once if it is too slow.

        Args:
            space: Kernels of one space are compared with each other: those of a family for a problem.
            us: Microseconds of its first launch.
            tried: The kernel.
        """
        best = self._best_us[space] = min(us, self._best_us.get(space, us))
        if us > PROMISING * best:
            tried.leave()
            return
        self._num_added += 1
        heapq.heappush(self._waiting, _Kernel(us / best, self._num_added, us, space, tried))

    def advance(self, count: int | None = None) -> bool:
        """Try the other launches of up to `count` kernels (None: of all), and leave those that are too slow by now.

        Returns:
            Whether a kernel waited.
        """
        found = bool(self._waiting)
        while self._waiting and count != 0:
            kernel = heapq.heappop(self._waiting)
            if kernel.us > PROMISING * self._best_us[kernel.space]:
                kernel.tried.leave()
                continue
            kernel.tried.try_others()
            count = None if count is None else count - 1
        return found


POLL_SECONDS = 0.05
"""Time between two looks at the trials of other processes."""


class KernelTrials:
    """Submits kernels to the devices, and tells the studies the results; implements search.Devices.

    Args:
        study_manager: The studies.
        builder: The kernels.
        device: The database's row of the devices.
        queues: The trials of the devices.
        until: The deadline of the search.
        is_large: Whether the run is large: of a kernel, one launch is tried first, and the others later if that was not
            slow.

    Attributes:
        builder, queues: As given.
        tried_elsewhere: Trials that another process has claimed.
        other_launches: Kernels whose other launches are tried later.
    """

    def __init__(
        self,
        study_manager: StudyManager,
        builder: KernelBuilder,
        device: Device,
        queues: DeviceQueues,
        until: Deadline,
        is_large: bool,
    ) -> None:
        self._study_manager, self._device, self.builder, self.queues = study_manager, device, builder, queues
        self._until, self._is_large = until, is_large
        self._submitted: set[tuple[SpaceStudy, Kernel]] = set()  # two studies may ask for one kernel
        self.tried_elsewhere: list[tuple[SpaceStudy, Kernel]] = []
        self.other_launches = OtherLaunches()

    @property
    def places(self) -> Mapping[Problem, int]:
        """The number of the device that measures a problem."""
        return self.queues.places

    def rooms(self) -> list[int]:
        """Return how many candidates each device takes without a wait."""
        return self.queues.rooms()

    def wait(self) -> None:
        """Wait a moment, in which a trial may end."""
        self.queues.wait()

    def finish(self) -> bool:
        """Record what is still being measured and tell the studies; return whether there was anything."""
        drained = self.queues.drain()
        waited = not self._until.is_over and self.try_other_launches()
        return drained or waited

    def measure(self, kernels: Sequence[Kernel]) -> None:
        """Submit kernels for the problems whose studies want them, as long as there is time.

        Trials that another process has claimed are left to it; their results are read at the end of the search.
        """
        for kernel in kernels:
            for study in self._study_manager.studies_of(kernel):
                if study.wants(kernel.values) and (study, kernel) not in self._submitted:
                    if self._until.is_over:
                        return
                    self._submit(study, kernel)
                    self._submitted.add((study, kernel))

    def try_other_launches(self, count: int | None = None) -> bool:
        """Try the launches that were left for later, of up to `count` kernels; return whether a kernel waited."""
        return self.other_launches.advance(count)

    def finish_tried_elsewhere(self) -> None:
        """Wait for the trials that other processes claimed; take over those of a process that died."""
        while self.tried_elsewhere and not self._until.is_over:
            again, self.tried_elsewhere = self.tried_elsewhere, []
            for study, kernel in again:
                self._submit(study, kernel)
            self.queues.drain()
            if self.tried_elsewhere:
                time.sleep(POLL_SECONDS)

    def _submit(self, study: SpaceStudy, kernel: Kernel) -> None:
        """Try the untried launches of a kernel on a study's problem, later if another process is trying it."""
        problem, row = study.space.problem, self.builder.rows[kernel]
        launches = self._study_manager.launches(problem, kernel)
        first = launches[:1] if self._is_large else launches
        self.queues.submit(
            _StudyTrial(problem, row, first, owner=self, study=study, kernel=kernel, all_launches=launches)
        )

    def tell(self, trial: _StudyTrial) -> None:
        """Tell a study a kernel's results; if some launches have none, those of the database, too."""
        all_new = len(trial.results) == len(trial.launches)
        recorded = [] if all_new else self._study_manager.recorded(self._device, trial.problem, trial.row)
        self._study_manager.tell_measured(trial.study, trial.kernel, [*recorded, *trial.results])


@dataclass(frozen=True, kw_only=True)
class _StudyTrial(WantedTrial):
    """A kernel that a study has asked for, on the study's problem.

    Attributes:
        owner: Submits the trial and tells the study.
        study: The study.
        kernel: The kernel.
        all_launches: All launch values of the kernel; `launches` may be the first one only.
        results: The results so far.
    """

    owner: KernelTrials
    study: SpaceStudy
    kernel: Kernel
    all_launches: Sequence[Mapping[str, int]]
    results: Sequence[Result] = ()

    def take_build_seconds(self) -> Mapping[str, float]:
        return self.owner.builder.take_seconds(self.kernel)

    def done(self, results: Sequence[Result]) -> None:
        trial = replace(self, results=[*self.results, *results])
        if len(self.launches) == len(self.all_launches):
            trial.leave()
        elif not results:  # the first launch was tried in an earlier run, which was ended before the others
            trial.try_others()
        elif us := results[0].median_us:
            self.owner.other_launches.add(self.study, us, trial)
        else:
            trial.leave()

    def elsewhere(self) -> None:
        self.owner.tried_elsewhere.append((self.study, self.kernel))

    def try_others(self) -> None:
        """Try the launches that were not tried."""
        self.owner.queues.submit(replace(self, launches=self.all_launches))

    def leave(self) -> None:
        """Try no more launches."""
        self.owner.tell(self)
