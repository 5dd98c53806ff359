"""The devices of a run, and which of them measures what.

All candidates of a problem are measured on one device, because two GPUs of one name differ by percents. The problems
are spread over the devices by their weights. If a device is lost, the others take over its problems.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

from autotune.core import WorkerError
from autotune.core.errors import Fault, record_fault
from autotune.ir import Problem
from autotune.measure import Result, Worker
from autotune.runtime import Candidate
from autotune.search import MIN_DEPTH, device_places
from autotune.tuner.progress import Progress
from autotune.tuner.time_shares import TimeBreakdown
from autotune.tuner.trials.trial_queue import TrialQueue, WantedTrial
from tuning_db import Store
from tuning_db.schema import Device, KernelRow
from tuning_db.store import CLAIMS

MAX_WAITING = 4
"""Trials for each of several devices that may wait for room at theirs."""
_POLL_SECONDS = 0.005
_WAIT_SECONDS = 0.02


class DeviceQueues:
    """The trials of a run on its devices, which are of one kind.

    Args:
        store: The database.
        workers: The measuring process of each device.
        device: The database's row of the devices.
        breakdown: Receives the times of the trials.
        progress: Receives events.
        weights: Weights of all problems.
        best_us: The best time of each problem that has one; the queues add those of their trials.

    Attributes:
        places: The number of each problem's device among those that are not lost.
    """

    def __init__(
        self,
        store: Store,
        workers: Sequence[Worker],
        device: Device,
        breakdown: TimeBreakdown,
        progress: Progress,
        weights: Mapping[Problem, float],
        best_us: dict[Problem, float],
    ) -> None:
        depth = CLAIMS if len(workers) == 1 else max(MIN_DEPTH, CLAIMS // len(workers))
        self._queues = [
            TrialQueue(store, worker, device, breakdown, progress, best_us, place, depth)
            for place, worker in enumerate(workers)
        ]
        self._weights, self._progress = dict(weights), progress
        self.places = device_places(self._weights, len(self._queues))
        self._waiting: dict[TrialQueue, deque[WantedTrial]] = {queue: deque() for queue in self._queues}

    @property
    def workers(self) -> list[Worker]:
        """The measuring processes of the devices that are not lost."""
        return [queue.worker for queue in self._queues]

    def worker(self, problem: Problem) -> Worker:
        """Return the measuring process of a problem's device."""
        return self._of(problem).worker

    def rooms(self) -> list[int]:
        """Return how many candidates each device takes now; results that have come back make room."""
        self._advance()
        return [max(0, queue.room - len(self._waiting[queue])) for queue in self._queues]

    def submit(self, wanted: WantedTrial) -> None:
        """Try a kernel on a problem, as TrialQueue.submit does, on the problem's device.

        With several devices some trials wait here for theirs, so that the others have work.
        """
        if len(self._queues) == 1 and not self._num_waiting:
            self._queues[0].submit(wanted)
            return
        self._waiting[self._of(wanted.problem)].append(wanted)
        self._advance()
        while self._num_waiting > MAX_WAITING * len(self._queues):
            self._wait()

    def wait(self) -> None:
        """Wait a moment. Devices that are full have work for longer."""
        time.sleep(_WAIT_SECONDS)

    def drain(self) -> bool:
        """Record all results; return whether there were any."""
        waited = self._num_pending > 0
        while self._num_waiting or (len(self._queues) > 1 and self._num_pending):
            self._wait()
        self._queues[0].drain()
        return waited

    def record(self, problem: Problem, row: KernelRow, tried: Candidate, result: Result, final: bool = False) -> None:
        """Write the result of a candidate to the database, as TrialQueue.record does."""
        self._of(problem).record(problem, row, tried, result, final)

    @property
    def _num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def _num_pending(self) -> int:
        """Number of trials that wait, and of candidates at the devices."""
        return self._num_waiting + sum(queue.num_sent for queue in self._queues)

    def _of(self, problem: Problem) -> TrialQueue:
        return self._queues[self.places.get(problem, 0)]

    def _wait(self) -> None:
        """Do what `_advance` does; wait a moment if there was nothing to do."""
        before = self._num_pending
        self._advance()
        if self._num_pending == before:
            time.sleep(_POLL_SECONDS)

    def _advance(self) -> None:
        """Record the results that have come back from any device, and send what devices have room for."""
        for queue in list(self._queues):
            try:
                queue.collect()
                self._submit_waiting(queue)
            except WorkerError as error:
                self._lose(queue, error)

    def _submit_waiting(self, queue: TrialQueue) -> None:
        """Submit the trials that wait for a device, as long as it has room. A submission may add further trials."""
        waiting = self._waiting[queue]
        while waiting and queue.room:
            wanted = waiting.popleft()
            try:
                queue.submit(wanted)
            except WorkerError:
                waiting.appendleft(wanted)
                raise

    def _lose(self, lost: TrialQueue, error: WorkerError) -> None:
        """Spread the problems over the devices that are left, one of which takes over the trials of the lost one.

        Raises:
            WorkerError: It is the last device.
        """
        if len(self._queues) == 1:
            raise error
        record_fault(Fault.DEVICE_LOST)
        self._progress.note(f"a device is lost, and the others take over its problems: {error}")
        self._queues.remove(lost)
        self.places = device_places(self._weights, len(self._queues))
        for wanted in self._waiting.pop(lost):
            self._waiting[self._of(wanted.problem)].append(wanted)
        min(self._queues, key=lambda queue: queue.num_sent).adopt(lost)
