"""What a candidate costs beside its time on the device: the host's time, energy, memory."""

from __future__ import annotations

import ctypes
import math
import resource
import time
from collections.abc import Callable
from pathlib import Path

import torch

from autotune.measure.timers import Work, host_clock, library_choices, stream_of, synchronize
from autotune.runtime import BoundStep


def host_us(launch: Work, launches: int, device: torch.device) -> float:
    """Microseconds of the host's time for one launch. launch: enqueues so many, few enough for the queue to take."""
    best = math.inf
    for _ in range(3):
        synchronize(device)
        best = min(best, host_clock(launch) / launches)
    synchronize(device)
    return best


def energy_uj(
    run: Callable[[], int], counter_mj: Callable[[], float | None], seconds: float = 0.3, limit: float = 5.0
) -> float | None:
    """Microjoules of one call, of all that the counter counts; None where it does not move within `limit` seconds.

    run: makes calls, waits for them and returns how many; counter_mj: millijoules so far. The counter moves in steps of
    tens of milliseconds, so we count from one of its steps to another, at least `seconds` later.
    """
    calls, last, started = 0, counter_mj(), time.perf_counter()
    first: tuple[float, int, float] | None = None
    while (now := time.perf_counter()) < started + limit:
        calls += run()
        value = counter_mj()
        if value is None:
            return None
        if value == last:
            continue
        last = value
        if first is None:
            first = value, calls, now
        elif now - first[2] >= seconds:
            return (value - first[0]) * 1e3 / (calls - first[1])
    return None


def memory_bytes(device: torch.device) -> int:
    """Memory in use: of a GPU, by anyone, but for what torch keeps to use again; on a CPU this process's data."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(total - free - torch.cuda.memory_reserved(device))
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * resource.getpagesize() - _free_bytes()


_MALLINFO2 = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
    *("uordblks", "fordblks", "keepcost"),
)


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO2)


def _free_bytes() -> int:
    """What malloc has of the system and not given out: a leak takes that first, before the process grows."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):  # glibc before 2.33, or another C library
        return 0
    libc.mallinfo2.restype = _Mallinfo2
    return int(libc.mallinfo2().fordblks)


def workspace_bytes(step: BoundStep, device: torch.device) -> int | None:
    """What a step needs beside its operands: a kernel's workspace, a torch operator's peak. None: torch on a CPU."""
    if step.kernel:
        return step.kernel.workspace_bytes
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with library_choices():
        step.run(stream_of(device))
    return int(torch.cuda.max_memory_allocated(device)) - before
