"""Resources that a candidate takes beside device time: host time, energy, memory."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable

import psutil
import torch

from autotune.measure.timers import Call, host_clock, library_choices, stream_of, synchronize
from autotune.runtime import BoundStep


def host_us(launch: Call, launches: int, device: torch.device) -> float:
    """Return the host's microseconds for one launch.

    Args:
        launch: Enqueues `launches` launches.
        launches: Few enough for the stream's queue; else the host would wait for the device.
        device: The device that is launched on.
    """
    best = math.inf
    for _ in range(3):
        synchronize(device)
        best = min(best, host_clock(launch) / launches)
    synchronize(device)
    return best


def energy_uj(
    run: Callable[[], int], counter_mj: Callable[[], float | None], seconds: float = 0.3, limit: float = 5.0
) -> float | None:
    """Return the microjoules of one call, including everything else that the counter counts meanwhile.

    The counter moves in steps of tens of milliseconds. The measurement therefore lasts from one step of the counter to
    another one at least `seconds` later: energy = (counter difference) / (calls in between).

    Args:
        run: Makes calls, waits for them and returns how many it made.
        counter_mj: Millijoules so far; None if they are not counted.
        seconds: Least duration.
        limit: Most seconds.

    Returns:
        Microjoules; None if the counter does not exist or does not move within `limit` seconds.
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


def allocator_bytes(device: torch.device) -> tuple[int, int]:
    """Return the bytes of a GPU that torch's allocator has reserved, and how many of them tensors take."""
    statistics = torch.cuda.memory_stats_as_nested_dict(device)  # memory_reserved sorts all 200 of them first
    reserved, allocated = (int(statistics[f"{kind}_bytes"]["all"]["current"]) for kind in ("reserved", "allocated"))
    return reserved, allocated


def memory_bytes(device: torch.device) -> int:
    """Return the memory in use.

    On a GPU that of all processes, without what torch's allocator keeps for reuse. On a CPU this process's data
    segment, without what malloc keeps for reuse.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(total - free - allocator_bytes(device)[0])
    return int(psutil.Process().memory_info().data) - _malloc_free_bytes()


_MALLINFO2 = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
    *("uordblks", "fordblks", "keepcost"),
)
"""Fields of glibc's struct mallinfo2 (mallinfo(3))."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO2)


def _malloc_free_bytes() -> int:
    """Return the free bytes that malloc keeps. A leak takes these first, before the process grows."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):  # glibc before 2.33, or another C library
        return 0
    libc.mallinfo2.restype = _Mallinfo2
    return int(libc.mallinfo2().fordblks)


def workspace_bytes(step: BoundStep, device: torch.device) -> int | None:
    """Return the bytes that a step needs beside its tensors: a kernel's workspace, or a torch operator's peak memory.

    None for a torch operator on a CPU, where torch does not count memory.
    """
    if step.kernel:
        return step.kernel.workspace_bytes
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with library_choices():
        step.run(stream_of(device))
    return int(torch.cuda.max_memory_allocated(device)) - before
