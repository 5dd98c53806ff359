"""Errors that a user can cause, and faults of machines and processes that a tuning run survives.

The message of an error is one sentence: what was given, what is supported, what to do. The code that notices a fault
records it for the table at the end of the run. The counts belong to the process, as the recorder of timeline.py does.
Their functions may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from enum import Enum


class AutotuneError(Exception):
    """Base class of all errors that this project raises on purpose."""


class UnknownNameError(AutotuneError, ValueError):
    """A name of an architecture, model, family, operator or dtype that does not exist."""


class ProblemError(AutotuneError, ValueError):
    """A problem with invalid sizes or an invalid epilogue."""


class CaptureError(AutotuneError, ValueError):
    """A model that cannot be captured; the message names the submodule."""


class FamilyError(AutotuneError):
    """A user-defined family that cannot be loaded or rendered."""


class ToolchainError(AutotuneError):
    """No usable compiler, or a compiler that does not support the target."""


class LibraryError(AutotuneError):
    """A library such as cuDNN that is not installed, is too old, or cannot solve a problem."""


class WorkerError(AutotuneError):
    """A measuring process that cannot be started."""


class OutOfTimeError(AutotuneError):
    """The deadline of the run has passed while an answer was waited for."""


class LayerError(AutotuneError):
    """A layer of a network whose candidate fails when it runs.

    Args:
        layer: Name of the layer.
        error: The failure.

    Attributes:
        layer: Name of the layer.
    """

    def __init__(self, layer: str, error: Exception) -> None:
        super().__init__(f"the layer '{layer}' fails: {in_one_line(error)}")
        self.layer = layer


def require_one_of(kind: str, name: str, known: list[str]) -> str:
    """Return `name` if it is one of the known names.

    Args:
        kind: Kind of the name, for the message.
        name: The name.
        known: All names of this kind.

    Raises:
        UnknownNameError: The name is not known; the message lists the known ones.
    """
    if name not in known:
        raise UnknownNameError(f"unknown {kind} '{name}': choose one of {', '.join(known)}")
    return name


def first_line(error: Exception) -> str:
    """Return the first line of an error's text that is not empty; the error's type without one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def in_one_line(error: Exception) -> str:
    """Return the type and the first line of an error; the line alone if the error is one of this project."""
    kind, line = type(error).__name__, first_line(error)
    return line if isinstance(error, AutotuneError) or line == kind else f"{kind}: {line}"


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


def record_fault(fault: Fault, times: int = 1) -> None:
    """Count a fault."""
    with _lock:
        _counts[fault] += times


def fault_counts() -> Mapping[Fault, int]:
    """Return how often each fault has happened since `forget_faults`, without those that have not."""
    with _lock:
        return {fault: _counts[fault] for fault in Fault if _counts[fault]}


def forget_faults() -> None:
    """Forget all faults, at the begin of a run."""
    with _lock:
        _counts.clear()
