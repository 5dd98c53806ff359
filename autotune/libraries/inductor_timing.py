"""How Inductor times the kernels among which it chooses on a GPU.

Inductor times single launches from Python. On a host that is busy, as it is while kernels are compiled beside, the
host takes longer for a launch than the GPU for the kernel, and the choice is a matter of chance. Inductor keeps its
choices on the disk, so that a wrong one stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from autotune.core.device_turn import MOST_SECONDS, occupy, turn

_SECONDS = 2e-3
"""Work of the GPU in one measurement."""
_FEWEST, _MOST = 7, 50
"""Launches in one measurement."""
_WARM_UPS = 3
Benchmark = Callable[..., Any]
"""(what is timed, options of torch) -> milliseconds."""


@contextmanager
def kernels_timed_in_turns(
    device: torch.device, most_seconds: float = MOST_SECONDS, benchmark: Benchmark | None = None
) -> Iterator[None]:
    """Give Inductor its turn on a GPU whenever it times a kernel: it would choose by times that others disturb.

    Args:
        device: The GPU; nothing changes for other devices.
        most_seconds: Longest wait for a turn.
        benchmark: Replaces Inductor's own measurement.
    """
    if device.type != "cuda":
        yield
        return
    from torch._inductor.runtime import benchmarking  # importing it takes seconds

    benchmarker: Any = benchmarking.benchmarker
    own = benchmarker.benchmark_gpu

    def in_a_turn(*args: Any, **kwargs: Any) -> Any:
        with turn(device, most_seconds):
            return (benchmark or own)(*args, **kwargs)

    benchmarker.benchmark_gpu = in_a_turn
    try:
        yield
    finally:
        benchmarker.benchmark_gpu = own


def device_milliseconds(call: Callable[[], object], **options: object) -> float | list[float]:
    """Return the time of a call on the GPU: the median of launches that the host has queued before the first one runs.

    Caches are as the launch before leaves them, which is nearer to a network's than the empty ones of torch's method.

    Args:
        call: Launches what is timed on the current stream.
        options: Options of torch's method, of which `return_mode="all"` applies: the times of all launches.
    """
    import statistics  # takes 4 ms, also in a process that compiles nothing

    for _ in range(_WARM_UPS):
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    rough_ms = statistics.median(_queued(call, _WARM_UPS, 0.0))
    host_us = 1e6 * (time.perf_counter() - started) / _WARM_UPS
    launches = max(_FEWEST, min(_MOST, round(1e3 * _SECONDS / max(rough_ms, 1e-3))))
    times = _queued(call, launches, 2 * launches * host_us)
    return times if options.get("return_mode") == "all" else statistics.median(times)


def _queued(call: Callable[[], object], launches: int, us: float) -> list[float]:
    """Return the milliseconds of each launch; the GPU waits a time, in which the host queues them."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(launches + 1)]
    occupy(us)
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in pairwise(events)]
