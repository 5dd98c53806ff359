"""The trials of cuDNN's plans, which need no compiler of ours."""

from __future__ import annotations

import heapq

from autotune.core import Deadline
from autotune.ir import Problem
from autotune.libraries import aten
from autotune.tuner.library_candidates import LibraryCandidates
from autotune.tuner.progress import Progress
from autotune.tuner.trials.device_queues import DeviceQueues
from autotune.tuner.trials.trial_queue import WantedTrial
from tuning_db.schema import KernelRow


class LibraryTrials:
    """Tries cuDNN's plans: the first choice of its heuristics for each problem, then the second choice for each.

    Args:
        listed: Lists the plans; None if there are none.
        queues: The devices.
        until: The deadline of the search.
        progress: Receives events.
    """

    def __init__(
        self, listed: LibraryCandidates | None, queues: DeviceQueues, until: Deadline, progress: Progress
    ) -> None:
        self._listed, self._queues, self._until, self._progress = listed, queues, until, progress
        self._plans: list[tuple[int, int, Problem, KernelRow]] = []  # a heap, by the choice of the heuristics
        self._num_plans = 0
        self._reasons: set[str] = set()

    @property
    def num_waiting(self) -> int:
        """Number of plans that are listed and were not tried."""
        return len(self._plans)

    def collect(self, until: Deadline | None = None) -> None:
        """Take over the plans that were listed, and report each reason for missing plans once.

        Args:
            until: Wait for all of them until this deadline; None does not wait.
        """
        for problem, rows, reason in self._listed.ready(until) if self._listed else ():
            if reason and isinstance(problem, aten.PASSES) and reason not in self._reasons:
                self._reasons.add(reason)
                self._progress.note(reason)
            for place, row in enumerate(row for row in rows if row.library):
                heapq.heappush(self._plans, (place, self._num_plans, problem, row))
                self._num_plans += 1

    def submit(self, count: int) -> None:
        """Try some plans as long as the search may start more."""
        while count and self._plans and not self._until.is_over:
            *_, problem, row = heapq.heappop(self._plans)
            self._queues.submit(WantedTrial(problem, row))
            count -= 1
