"""The devices of a run: which of them measures what, and the queue of measurements at each.

All candidates of a problem are measured on one device, because two GPUs of one name differ by percents. The problems
are spread over the devices by their weights. If a device is lost, the others take over its problems.

A few candidates wait behind the one that is being measured, so the device keeps working while results are recorded, the
next configs are chosen, and compiled kernels are stored. A tuner that is killed loses these few and nothing else.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.core import Deadline, WorkerError
from autotune.core.errors import Fault, record_fault
from autotune.ir import Problem
from autotune.libraries import aten
from autotune.measure import Result, Worker
from autotune.runtime import Candidate, candidate
from autotune.search import MIN_DEPTH, device_places
from autotune.tuner.progress import Progress
from autotune.tuner.request import RUN_SECONDS
from autotune.tuner.time_shares import IDLE, RECORD, TimeBreakdown
from tuning_db import Store
from tuning_db.schema import Device, KernelRow
from tuning_db.store import CLAIMS


@dataclass(frozen=True)
class WantedTrial:
    """A kernel to try on a problem. A subclass may take part in what comes of it.

    Attributes:
        problem: The problem.
        row: The kernel.
        launches: The launch values.
        again: Try it although it was tried before: the measuring process has to compile it for a later comparison.
    """

    problem: Problem
    row: KernelRow
    launches: Sequence[Mapping[str, int]] = ({},)
    again: bool = False

    def take_build_seconds(self) -> Mapping[str, float]:
        """Return the seconds of choosing and building the kernel; called only if it is tried."""
        return {}

    def done(self, results: Sequence[Result]) -> None:
        """Take the results when all are recorded, and none at once if nothing is left to try."""

    def elsewhere(self) -> None:
        """Note that another process is trying the kernel on the problem."""


@dataclass
class _KernelTrial:
    """The trials of a kernel on a problem that are under way.

    Attributes:
        wanted: The kernel and the problem.
        build_seconds: Seconds of choosing and building the kernel; recorded with the first trial.
        num_left: Number of launches whose result has not come back.
        results: The results so far.
    """

    wanted: WantedTrial
    build_seconds: Mapping[str, float]
    num_left: int
    results: list[Result] = field(default_factory=list)


def known_times(store: Store, device: Device, problems: Iterable[Problem]) -> dict[Problem, float]:
    """Return the best time in microseconds of each problem that was measured on a device before."""
    times = store.best_times(device)
    return {problem: times[text] for problem in problems if (text := str(problem)) in times}


def record_result(
    store: Store,
    device: Device,
    problem: Problem,
    kernel_id: int,
    tried: Candidate,
    result: Result,
    final: bool = False,
) -> None:
    """Write the result of a candidate to the database.

    Args:
        store: The database.
        device: The device that ran it.
        problem: The problem.
        kernel_id: Id of the candidate's kernel.
        tried: The candidate.
        result: Its result.
        final: Whether it was timed in interleaved rounds with the other finalists.
    """
    store.put_measurement(
        device_id=device.id,
        problem_id=store.put_problem(str(problem)).id,
        kernel_id=kernel_id,
        launch=dict(tried.launch),
        status=result.status,
        error=result.error,
        relative_error=result.relative_error,
        median_us=result.median_us,
        spread_us=result.spread_us,
        samples_us=result.samples_us,
        final=final,
        details=result.details,
    )


def record_unfinished(store: Store, device: Device, wanted: WantedTrial, run: Deadline) -> None:
    """Write that a trial did not end within a run: a later run with more time tries it again."""
    store.put_measurement(
        device_id=device.id,
        problem_id=store.put_problem(str(wanted.problem)).id,
        kernel_id=wanted.row.id,
        status="timed_out",
        error="it did not end within the budget",
        details={RUN_SECONDS: run.seconds} if math.isfinite(run.seconds) else {},
    )


class TrialQueue:
    """The trials of one tuner on one device; other processes may use the same database.

    Args:
        store: The database; each trial is committed as it ends.
        worker: Verifies and times candidates.
        device: The worker's device.
        breakdown: Receives the times of the trials.
        progress: Receives events.
        best_us: The best time of each problem that has one; the queue adds those of its trials.
        place: Number of the device among those of the run.
        depth: Candidates at the device from which `submit` waits. The launch values of one kernel are sent together.
        is_beside: Whether another queue keeps the device busy. If not, a trial records how long the device had no work.
    """

    def __init__(
        self,
        store: Store,
        worker: Worker,
        device: Device,
        breakdown: TimeBreakdown,
        progress: Progress,
        best_us: dict[Problem, float],
        place: int = 0,
        depth: int = CLAIMS,
        is_beside: bool = False,
    ) -> None:
        self.worker, self._place, self._depth, self._is_beside = worker, place, depth, is_beside
        self._store, self._device = store, device
        self._breakdown, self._progress = breakdown, progress
        self._sent: deque[tuple[_KernelTrial, Candidate, float]] = deque()  # with the seconds that the device waited
        self._idle_since = time.monotonic()
        self._best_us = best_us

    @property
    def num_sent(self) -> int:
        """Number of candidates at the device."""
        return len(self._sent)

    @property
    def unfinished(self) -> list[WantedTrial]:
        """The trials that are at the device, each once."""
        return list({id(trial): trial.wanted for trial, *_ in self._sent}.values())

    @property
    def room(self) -> int:
        """Number of candidates that `submit` sends without waiting for a result."""
        return max(0, self._depth - len(self._sent))

    def adopt(self, other: TrialQueue) -> None:
        """Take over the trials of a queue whose device is lost."""
        while other._sent:
            trial, loaded, _ = other._sent.popleft()
            self._send(trial, loaded)
        other._breakdown.set_busy(device=False, place=other._place)

    def submit(self, wanted: WantedTrial) -> None:
        """Try a kernel on a problem with the launch values that were not tried, once there is room for one of them."""
        self.drain(self._depth - 1)
        problem, row, launches = wanted.problem, wanted.row, list(wanted.launches)
        with self._breakdown.charge(RECORD):
            left = launches if wanted.again else self._store.claim(self._device, str(problem), row, launches)
        if left is None:
            wanted.elsewhere()
            return
        if not left:
            wanted.done([])
            return
        trial = _KernelTrial(wanted, wanted.take_build_seconds(), len(left))
        for launch in left:
            with self._breakdown.charge("load"):
                loaded = candidate(self._store, row, launch)
            self._send(trial, loaded)

    def _send(self, trial: _KernelTrial, loaded: Candidate) -> None:
        """Send a candidate to the device."""
        problem = trial.wanted.problem
        self.worker.send(problem, loaded, self._best_us.get(problem))
        idle = 0.0 if self._sent or self._is_beside else time.monotonic() - self._idle_since
        self._sent.append((trial, loaded, idle))
        self._breakdown.set_busy(device=True, place=self._place)

    def drain(self, max_left: int = 0) -> bool:
        """Record results until at most `max_left` candidates are at the device; return whether there were any."""
        waited = len(self._sent) > max_left
        while len(self._sent) > max_left:
            result = self.worker.receive()
            trial, tried, idle = self._sent.popleft()
            self._idle_since = time.monotonic()
            problem, row = trial.wanted.problem, trial.wanted.row
            self._breakdown.set_busy(device=bool(self._sent), place=self._place)
            seconds = result.details["seconds"]
            self._breakdown.add(seconds)
            self._breakdown.trials += 1
            with self._breakdown.charge(RECORD):
                build_seconds = {} if trial.results else trial.build_seconds
                details = {**result.details, "seconds": {**build_seconds, **seconds, IDLE: round(idle, 5)}}
                self.record(problem, row, tried, replace(result, details=details))
                self._progress.measured(str(problem), 1, self._update_best_us(problem, result.median_us))
                if row.family == aten.FAMILY and result.median_us:
                    self._progress.operator_timed(str(problem), result.median_us)
            trial.results.append(result)
            trial.num_left -= 1
            if not trial.num_left:
                trial.wanted.done(trial.results)
        return waited

    def collect(self) -> None:
        """Record the results that have come back, without waiting for others."""
        while self._sent and self.worker.has_answer:
            self.drain(len(self._sent) - 1)

    def record(self, problem: Problem, row: KernelRow, tried: Candidate, result: Result, final: bool = False) -> None:
        """Write the result of a candidate to the database, as `record_result` does."""
        record_result(self._store, self._device, problem, row.id, tried, result, final)

    def _update_best_us(self, problem: Problem, us: float | None) -> float | None:
        """Return the best time of a problem, a new result included."""
        if us and us < self._best_us.get(problem, math.inf):
            self._best_us[problem] = us
        return self._best_us.get(problem)


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
