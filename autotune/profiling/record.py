"""Records a network under torch's profiler, with marks that tell which module launched each kernel.

The result is a Chrome trace as torch writes it, with one more key, `ABOUT`: what was run, and how long it takes without
the profiler. `attribution.read` reads it, right after the recording or from a file.

On a GPU the calls are queued behind a kernel that only waits, so that the device never waits for the host. The times of
the device therefore contain no host time.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from autotune.core import chrome_trace
from autotune.core.device_turn import occupy
from autotune.measure import Call, between, host_clock, synchronize, warm_up

ABOUT = "autotune_profile"
"""Key of the trace that describes the recording."""
CALL, MODULE, KERNEL = "call:", "module:", "kernel:"
"""Prefixes of the ranges in a recording: a call of the network, a module (with its path), a kernel of ours."""
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of the events that the device executes."""

_BURSTS = 9
"""Samples of the time without the profiler."""
_QUEUE = 900
"""Launches that are queued at once: a stream takes about 1000 before it makes the host wait."""
_WARM_SECONDS = 0.3
"""Least duration of the warm-up."""


@dataclass(frozen=True)
class Subject:
    """A network to profile.

    call: Runs the network once.
    marked: Runs it once within `ranges`, with a range around each module.
    ranges: Context in which `marked` is called.
    modules: Path -> name of the class.
    layers: Description of the layers that run on our kernels, by path.
    as_used: The network as its users run it, if that differs from `call`, such as in a CUDA graph.
    """

    call: Call
    marked: Call
    ranges: Callable[[], AbstractContextManager[object]]
    modules: Mapping[str, str]
    layers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    as_used: Call | None = None


def of_module(module: nn.Module, x: torch.Tensor) -> Subject:
    """Return a plain torch module as a subject; hooks mark its submodules while it is recorded."""

    def call() -> object:
        return module(x)

    return Subject(call, call, lambda: _hooks(module), {path: _class_name(m) for path, m in module.named_modules()})


def of_compiled(module: nn.Module, x: torch.Tensor) -> Subject:
    """Return a module under torch.compile as a subject.

    The compiler fuses across submodules, so all kernels belong to the whole network.
    """
    torch.compiler.reset()
    if x.device.type == "cpu":
        torch._inductor.config.cpp.enable_kernel_profile = True
    compiled = torch.compile(module, dynamic=False)

    def marked() -> object:
        with record_function(MODULE):
            return compiled(x)

    return Subject(lambda: compiled(x), marked, nullcontext, {"": _class_name(module)})


@contextmanager
def _hooks(module: nn.Module) -> Iterator[None]:
    """Mark every call of every submodule; a shared module has its first path."""
    with ExitStack() as stack:
        for path, part in module.named_modules():
            open_ranges: list[record_function] = []

            def enter(_module: nn.Module, _given: object, path: str = path, ranges: Any = open_ranges) -> None:
                ranges.append(record_function(MODULE + path))
                ranges[-1].__enter__()

            def leave(_module: nn.Module, _given: object, _result: object, ranges: Any = open_ranges) -> None:
                if ranges:
                    ranges.pop().__exit__(None, None, None)

            # The range includes other hooks: their launches belong to the module.
            stack.callback(part.register_forward_pre_hook(enter, prepend=True).remove)
            stack.callback(part.register_forward_hook(leave, always_call=True).remove)
        yield


def _class_name(module: nn.Module) -> str:
    return type(module).__name__


# -- recording -----------------------------------------------------------------------------------------------------


def record(subject: Subject, device: torch.device, calls: int, about: Mapping[str, Any]) -> dict[str, Any]:
    """Record calls of a network in a row.

    Args:
        subject: The network.
        device: The device that it runs on.
        calls: Number of calls; fewer if the device cannot queue all of their kernels.
        about: Description that is stored in the trace, beside the measured times.

    Returns:
        The trace, as `chrome_trace.load` returns it.
    """
    with torch.inference_mode():
        _warm_up(subject.call, device)
        with subject.ranges():
            first, _ = _profiled(subject.marked, device, 1, 0.0)  # the first recording loads the profiler's libraries
        calls = calls_in_queue(first, calls)
        measured_us = _typical(subject.call, device, calls)
        as_used_us = _typical(subject.as_used, device, calls) if subject.as_used else None
        with subject.ranges():
            host_us = host_clock(_repeat(subject.marked, calls))
            trace, profiled_us = _profiled(subject.marked, device, calls, 3 * host_us)  # recording slows the host down
    trace[ABOUT] = {
        **about,
        "device_type": device.type,
        "calls": calls,
        "measured_us": measured_us,
        "profiled_us": profiled_us,
        "as_used_us": as_used_us,
        "modules": dict(subject.modules),
        "layers": {name: dict(layer) for name, layer in subject.layers.items()},
    }
    return trace


def calls_in_queue(trace: Mapping[str, Any], calls: int) -> int:
    """Return how many calls, at most `calls`, the device can queue at once. trace: A recording of one call."""
    launches = sum(event.get("cat") in DEVICE for event in trace["traceEvents"])
    return max(1, min(calls, _QUEUE // max(1, launches)))


def _warm_up(call: Call, device: torch.device) -> None:
    def finish() -> None:
        call()
        synchronize(device)

    for _ in range(3):  # compilation, autotuning of libraries, allocation
        call()
    synchronize(device)
    warm_up(lambda: host_clock(finish), _WARM_SECONDS, 10 * _WARM_SECONDS)


def _typical(call: Call, device: torch.device, calls: int) -> float:
    """Return the microseconds per call of `calls` calls in a row: the median of _BURSTS samples."""
    work = _repeat(call, calls)
    samples = [_timed(work, device, host_clock(work) if device.type == "cuda" else 0.0) for _ in range(_BURSTS)]
    return statistics.median(samples) / calls


def _repeat(call: Call, calls: int) -> Call:
    def work() -> None:
        for _ in range(calls):
            call()

    return work


def _profiled(call: Call, device: torch.device, calls: int, host_us: float) -> tuple[dict[str, Any], float]:
    """Return the trace of `calls` calls in a row and the microseconds per call. host_us: Host time of all calls."""
    numbers = itertools.count()

    def numbered() -> None:
        with record_function(f"{CALL}{next(numbers)}"):
            call()

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities, record_shapes=True) as recorder:
        us = _timed(_repeat(numbered, calls), device, host_us)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        recorder.export_chrome_trace(str(path))
        return chrome_trace.load(path), us / calls


def _timed(work: Call, device: torch.device, host_us: float) -> float:
    """Return the microseconds of the device, which starts when all work is queued; on a CPU those of the host."""
    synchronize(device)
    if device.type != "cuda":
        return host_clock(work)
    occupy(1.5 * host_us)
    return between(work)
