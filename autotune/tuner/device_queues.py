"""The devices of a run, and which of them measures what.

All candidates of a problem are measured on one device, because two GPUs of one name differ by percents. The problems
are spread over the devices by their weights. If a device is lost, the others take over its problems.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from autotune.core import WorkerError
from autotune.ir import Problem
from autotune.measure import Result, Worker
from autotune.runtime import Candidate
from autotune.search import MIN_DEPTH, device_places
from autotune.tuner.progress import Progress
from autotune.tuner.time_breakdown import TimeBreakdown
from autotune.tuner.trial_queue import TrialQueue
from tuning_db import Store
from tuning_db.schema import Device, KernelRow
from tuning_db.store import CLAIMS

_POLL_SECONDS = 0.0005


class DeviceQueues:
    """The trials of a run on its devices, which are of one kind.

    Args:
        store: The database.
        workers: The measuring process of each device.
        device: The database's row of the devices.
        breakdown: Receives the times of the trials.
        progress: Receives events.
        weights: Weights of all problems.
    """

    def __init__(
        self,
        store: Store,
        workers: Sequence[Worker],
        device: Device,
        breakdown: TimeBreakdown,
        progress: Progress,
        weights: Mapping[Problem, float],
    ) -> None:
        depth = CLAIMS if len(workers) == 1 else max(MIN_DEPTH, CLAIMS // len(workers))
        self._queues = [
            TrialQueue(store, worker, device, breakdown, progress, place, depth) for place, worker in enumerate(workers)
        ]
        self._weights, self._progress = dict(weights), progress
        self._places = device_places(self._weights, len(self._queues))

    @property
    def workers(self) -> list[Worker]:
        """The measuring processes of the devices that are not lost."""
        return [queue.worker for queue in self._queues]

    def worker(self, problem: Problem) -> Worker:
        """Return the measuring process of a problem's device."""
        return self._of(problem).worker

    def submit(
        self,
        problem: Problem,
        row: KernelRow,
        launches: Sequence[Mapping[str, int]],
        take_build_seconds: Callable[[], Mapping[str, float]] = dict,
        on_done: Callable[[list[Result]], None] = lambda _: None,
    ) -> bool:
        """Try a kernel on a problem, as TrialQueue.submit does, on the problem's device."""
        while True:
            queue = self._of(problem)
            if len(self._queues) > 1 and queue.is_full:
                self._collect()
                continue
            try:
                return queue.submit(problem, row, launches, take_build_seconds, on_done)
            except WorkerError as error:
                self._lose(queue, error)

    def drain(self) -> bool:
        """Record all results; return whether there were any."""
        waited = any(queue.num_sent for queue in self._queues)
        while len(self._queues) > 1 and any(queue.num_sent for queue in self._queues):
            self._collect()
        self._queues[0].drain()
        return waited

    def record(self, problem: Problem, row: KernelRow, tried: Candidate, result: Result, final: bool = False) -> None:
        """Write the result of a candidate to the database, as TrialQueue.record does."""
        self._of(problem).record(problem, row, tried, result, final)

    def best_us(self, problem: Problem) -> float | None:
        """Return the best time of a problem as far as this process knows."""
        return self._of(problem).best_us(problem)

    def _of(self, problem: Problem) -> TrialQueue:
        return self._queues[self._places.get(problem, 0)]

    def _collect(self) -> None:
        """Record the results that have come back from any device; wait a moment if there are none."""
        before = sum(queue.num_sent for queue in self._queues)
        for queue in list(self._queues):
            try:
                queue.collect()
            except WorkerError as error:
                self._lose(queue, error)
        if sum(queue.num_sent for queue in self._queues) == before:
            time.sleep(_POLL_SECONDS)

    def _lose(self, lost: TrialQueue, error: WorkerError) -> None:
        """Spread the problems over the devices that are left, one of which takes over the trials of the lost one.

        Raises:
            WorkerError: It is the last device.
        """
        if len(self._queues) == 1:
            raise error
        self._progress.note(f"a device is lost, and the others take over its problems: {error}")
        self._queues.remove(lost)
        self._places = device_places(self._weights, len(self._queues))
        min(self._queues, key=lambda queue: queue.num_sent).adopt(lost)
