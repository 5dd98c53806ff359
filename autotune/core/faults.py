"""Counts the faults of machines and processes that a tuning run survives, for the table at its end.

The code that notices a fault records it. The counts belong to the process, as the recorder of timeline.py does. All
functions may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from enum import Enum


class Fault(Enum):
    """A kind of fault: what happened, and what the run does then."""

    COMPILER_KILLED = "a compiler was killed", "its kernels are compiled again, fewer at a time"
    COMPILE_WORKER_LOST = "a worker that compiles was lost", "others compile what it had"
    COMPILE_WORKER_SILENT = "a worker that compiles did not answer", "another one compiles the unit, too"
    MEASURE_WORKER_LOST = "a worker that measures was lost", "another one takes its place"
    MEASURE_WORKER_SILENT = "a worker that measures did not answer", "another one takes its place"
    MEASURING_PROCESS_KILLED = "a measuring process was killed", "a new one makes its trials again"
    CANDIDATE_HUNG = "a candidate hung", "its process was killed, and the trial is recorded as timed out"
    CANDIDATE_CRASHED = "a candidate crashed its process", "the trial is recorded as crashed"
    DEVICE_LOST = "a device was lost", "the others take over its problems"
    SCHEDULER_LOST = "the connection to the scheduler was lost", "it was made again, and work was sent again"
    TUNER_DIED = "an earlier or other tuner died during a trial", "the trial is made again"

    @property
    def event(self) -> str:
        """Return a phrase for what happened."""
        return self.value[0]

    @property
    def consequence(self) -> str:
        """Return a phrase for what the run does about it."""
        return self.value[1]


_lock = threading.Lock()
_counts: Counter[Fault] = Counter()


def record(fault: Fault, times: int = 1) -> None:
    """Count a fault."""
    with _lock:
        _counts[fault] += times


def counts() -> Mapping[Fault, int]:
    """Return how often each fault has happened since `clear`, without those that have not."""
    with _lock:
        return {fault: _counts[fault] for fault in Fault if _counts[fault]}


def clear() -> None:
    """Forget all faults, at the begin of a run."""
    with _lock:
        _counts.clear()
