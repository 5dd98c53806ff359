"""The trials of kernels on the problems whose studies want them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from autotune.core import Deadline
from autotune.families import Kernel
from autotune.ir import Problem
from autotune.measure import Result
from autotune.search import SpaceStudy
from autotune.tuner.device_queues import DeviceQueues
from autotune.tuner.kernel_builder import KernelBuilder
from autotune.tuner.other_launches import OtherLaunches
from autotune.tuner.study_manager import StudyManager
from autotune.tuner.trial_queue import WantedTrial
from tuning_db.schema import Device

POLL_SECONDS = 0.05
"""Time between two looks at the trials of other processes."""


class KernelTrials:
    """Submits kernels to the devices, and tells the studies the results; implements search_loop.Devices.

    Args:
        study_manager: The studies.
        builder: The kernels.
        device: The database's row of the devices.
        queues: The trials of the devices.
        until: The deadline of the search.
        is_large: Whether the run is large: of a kernel, one launch is tried first, and the others later if that was not
            slow.
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
        self._study_manager, self._builder, self._device, self._queues = study_manager, builder, device, queues
        self._until, self._is_large = until, is_large
        self._submitted: set[tuple[SpaceStudy, Kernel]] = set()  # two studies may ask for one kernel
        self._tried_elsewhere: list[tuple[SpaceStudy, Kernel]] = []  # trials that another process has claimed
        self._other_launches = OtherLaunches()

    @property
    def places(self) -> Mapping[Problem, int]:
        """The number of the device that measures a problem."""
        return self._queues.places

    def rooms(self) -> list[int]:
        """Return how many candidates each device takes without a wait."""
        return self._queues.rooms()

    def wait(self) -> None:
        """Wait a moment, in which a trial may end."""
        self._queues.wait()

    def finish(self) -> bool:
        """Record what is still being measured and tell the studies; return whether there was anything."""
        drained = self._queues.drain()
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
        return self._other_launches.advance(count)

    def finish_tried_elsewhere(self) -> None:
        """Wait for the trials that other processes claimed; take over those of a process that died."""
        while self._tried_elsewhere and not self._until.is_over:
            again, self._tried_elsewhere = self._tried_elsewhere, []
            for study, kernel in again:
                self._submit(study, kernel)
            self._queues.drain()
            if self._tried_elsewhere:
                time.sleep(POLL_SECONDS)

    def _submit(self, study: SpaceStudy, kernel: Kernel) -> None:
        """Try the untried launches of a kernel on a study's problem, later if another process is trying it."""
        launches = self._study_manager.launches(study.space.problem, kernel)
        first = launches[:1] if self._is_large else launches
        try_some = partial(self._try, study, kernel)
        tell = partial(self._tell, study, kernel)

        def tell_or_go_on(results: list[Result]) -> None:
            try_others = partial(try_some, launches, lambda others: tell(launches, [*results, *others]))
            if not results:  # the first launch was tried in an earlier run, which was ended before the others
                try_others()
            elif us := results[0].median_us:
                leave = partial(tell, first, results)
                self._other_launches.add(study, us, try_others=try_others, leave=leave)
            else:
                tell(first, results)

        try_some(first, tell_or_go_on if len(first) < len(launches) else partial(tell, launches))

    def _try(
        self,
        study: SpaceStudy,
        kernel: Kernel,
        launches: Sequence[Mapping[str, int]],
        on_done: Callable[[list[Result]], None],
    ) -> None:
        self._queues.submit(
            WantedTrial(
                study.space.problem,
                self._builder.rows[kernel],
                launches,
                take_build_seconds=partial(self._builder.take_seconds, kernel),
                on_done=on_done,
                on_elsewhere=partial(self._tried_elsewhere.append, (study, kernel)),
            )
        )

    def _tell(
        self, study: SpaceStudy, kernel: Kernel, tried: Sequence[Mapping[str, int]], results: Sequence[Result]
    ) -> None:
        """Tell a study a kernel's results; if some launches have none, those of the database, too."""
        manager, row = self._study_manager, self._builder.rows[kernel]
        all_new = len(results) == len(tried)
        recorded = [] if all_new else manager.recorded(self._device, study.space.problem, row)
        manager.tell_measured(study, kernel, [*recorded, *results])
