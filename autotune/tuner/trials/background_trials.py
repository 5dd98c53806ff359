"""Trials beside the search, in a measuring process of their own: of candidates that take long to compile.

Inductor takes tens of seconds for a network, of which the device works for less than one. The kernels that it compiles
stay in its cache on the disk, where the process that tunes the network's plan finds them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from autotune.codegen import POLL_SECONDS
from autotune.core import Deadline, WorkerError
from autotune.measure import Worker
from autotune.tuner.machines import stop_until_done
from autotune.tuner.progress import Progress
from autotune.tuner.time_shares import TimeBreakdown
from autotune.tuner.trials.device_queues import TrialQueue, WantedTrial, known_times, record_unfinished
from tuning_db import Store
from tuning_db.schema import Device

AT_ONCE = 2
"""Candidates that are sent to the process: one that it works on, and the next."""


class BackgroundTrials:
    """Trials of some candidates on a device that another process uses, too. A context manager: its exit ends them.

    Args:
        store: The database; each trial is committed when `advance` finds that it has ended.
        device: The device.
        worker: The process; nothing else uses it before all trials have ended.
        work: The candidates and their problems, in the order in which they are tried.
        progress: Receives the events of the trials.

    """

    def __init__(
        self,
        store: Store,
        device: Device,
        worker: Worker,
        work: Iterable[WantedTrial],
        progress: Progress,
    ) -> None:
        self.worker, self._work, self._progress = worker, deque(work), progress
        self._breakdown, self._closed = TimeBreakdown(), False
        self._store, self._device = store, device
        best_us = known_times(store, device, (wanted.problem for wanted in self._work))
        self._trials = TrialQueue(store, worker, device, self._breakdown, self._progress, best_us, is_beside=True)
        self._executor = ThreadPoolExecutor(1)
        self._started = self._executor.submit(worker.start)

    def __enter__(self) -> BackgroundTrials:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process. What it was working on is lost, which the database keeps."""
        if not self._closed:
            for wanted in [*self._trials.unfinished, *self._work]:
                record_unfinished(self._store, self._device, wanted, self.worker.until)
        self._closed = True
        stop_until_done(self._executor, [self._started], [self.worker])
        self.worker.stop()

    @property
    def is_done(self) -> bool:
        """Return whether all trials have ended."""
        return not self._work and not self._trials.num_sent

    @property
    def num_tried(self) -> int:
        """Number of trials that have ended in this run."""
        return self._breakdown.trials

    def advance(self) -> None:
        """Record the trials that have ended and send more, without waiting.

        If the process does not start, nothing is tried: a GPU may admit one process only.

        Raises:
            OutOfTimeError: The run is over.
        """
        if self._closed or not self._started.done():
            return
        try:
            self._started.result()
        except WorkerError as error:
            if self._work:
                self._progress.note(f"nothing is compiled by Inductor: {error}")
            self._work.clear()  # another run may try
            return
        self._trials.collect()
        while self._work and self._trials.num_sent < AT_ONCE:
            self._trials.submit(self._work.popleft())

    def wait(self, until: Deadline) -> None:
        """Wait for the end of all trials, but no longer than until a deadline; raises as `advance` does."""
        self.advance()
        while not self.is_done and not until.is_over:
            time.sleep(POLL_SECONDS)
            self.advance()
