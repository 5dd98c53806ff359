"""Turns of processes on a GPU: only one measures at a time.

A GPU divides its time among the processes that use it, so two that measure at once both see about twice the time. The
tuner has such processes: one searches, and others time Inductor's code of the network.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path

import torch

MOST_SECONDS = 5.0
"""Longest wait: after that the holder is taken to hang, and the GPU is used without a turn."""
_POLL_SECONDS = 0.0005
_CYCLES_PER_US = 2.0e3
"""Cycles of `torch.cuda._sleep` per microsecond. GPU clocks are at most about 2 GHz, so a wait is never too short."""


def turn(device: torch.device, most_seconds: float = MOST_SECONDS) -> AbstractContextManager[None]:
    """Return a context in which this process has its turn on a GPU; for other devices one that does nothing.

    Args:
        device: The GPU.
        most_seconds: Longest wait for the turn.
    """
    return file_turn(_lock_of(device), most_seconds) if device.type == "cuda" else nullcontext()


@contextmanager
def file_turn(path: Path, most_seconds: float = MOST_SECONDS) -> Iterator[None]:
    """Wait for a turn, which the holder of a lock on a file has, and give it up at the end.

    Args:
        path: The file; it is made if it does not exist.
        most_seconds: Longest wait.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # measurements may be disturbed, but they are possible
        yield
        return
    try:
        _wait(descriptor, most_seconds)
        yield
    finally:
        os.close(descriptor)  # gives up the lock


def _wait(descriptor: int, most_seconds: float) -> None:
    until = time.monotonic() + most_seconds
    while time.monotonic() < until:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_POLL_SECONDS)


def occupy(us: float) -> None:
    """Keep the current stream busy for at least `us` microseconds, so that the host can queue work behind it."""
    torch.cuda._sleep(int(us * _CYCLES_PER_US))


@cache
def gpu_serial(device: torch.device) -> str:
    """Return the UUID of a GPU, which is the same in all processes, whichever devices they see."""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", device.index))


def _lock_of(device: torch.device) -> Path:
    return Path(tempfile.gettempdir()) / f"autotune-{os.getuid()}-{gpu_serial(device)}.turn"
