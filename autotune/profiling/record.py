"""Running a network under torch's profiler, so that each kernel can be traced to the module that launched it.

What comes out is a Chrome trace as torch writes it, with one key more, `ABOUT`: what was run, and how long it takes
without the profiler. Live profiles and recorded ones are therefore read by the same code, `attribution.read`.

On a GPU the calls are queued behind a kernel that only waits, so that the device never waits for the host: what is
timed is what the device does, and the host's time is told apart from it.
"""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from autotune.measure import Call, between, host_clock, occupy, synchronize

ABOUT = "autotune_profile"
"""The key of the trace that holds what was run."""
CALL, MODULE, KERNEL = "call:", "module:", "kernel:"
"""Prefixes of the ranges that a recording marks: a call of the network, a module by its path, a kernel of ours."""
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of the events that are the device's work."""

_BURSTS = 9
_QUEUE = 900  # launches: a little less than what a stream takes before it makes the host wait
_WARM_SECONDS = 0.3


@dataclass(frozen=True)
class Subject:
    """What is profiled.

    call: runs the network once. marked: the same within `ranges`, with each module's work in a range of its own.
    modules: path -> class. layers: what is known of layers that run on our kernels, by path.
    as_used: the network as its users run it where that differs from `call`, such as in a CUDA graph.
    """

    call: Call
    marked: Call
    ranges: Callable[[], AbstractContextManager[object]]
    modules: Mapping[str, str]
    layers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    as_used: Call | None = None


def of_module(module: nn.Module, x: torch.Tensor) -> Subject:
    """A plain torch module, whose submodules are marked by hooks while it is recorded."""

    def call() -> object:
        return module(x)

    return Subject(call, call, lambda: _hooks(module), {path: _kind(m) for path, m in module.named_modules()})


def of_compiled(module: nn.Module, x: torch.Tensor) -> Subject:
    """A module through torch.compile. It fuses across submodules, so all that it runs is the whole network's."""
    torch.compiler.reset()
    if x.device.type == "cpu":
        torch._inductor.config.cpp.enable_kernel_profile = True
    compiled = torch.compile(module, dynamic=False)

    def marked() -> object:
        with record_function(MODULE):
            return compiled(x)

    return Subject(lambda: compiled(x), marked, nullcontext, {"": _kind(module)})


@contextmanager
def _hooks(module: nn.Module) -> Iterator[None]:
    """Mark every call of every submodule; shared modules go by their first path."""
    with ExitStack() as stack:
        for path, part in module.named_modules():
            open_ranges: list[record_function] = []

            def enter(_module: nn.Module, _given: object, path: str = path, ranges: Any = open_ranges) -> None:
                ranges.append(record_function(MODULE + path))
                ranges[-1].__enter__()

            def leave(_module: nn.Module, _given: object, _result: object, ranges: Any = open_ranges) -> None:
                if ranges:
                    ranges.pop().__exit__(None, None, None)

            # First in, last out: what other hooks launch is the module's too.
            stack.callback(part.register_forward_pre_hook(enter, prepend=True).remove)
            stack.callback(part.register_forward_hook(leave, always_call=True).remove)
        yield


def _kind(module: nn.Module) -> str:
    return type(module).__name__


# -- recording -----------------------------------------------------------------------------------------------------


def record(subject: Subject, device: torch.device, calls: int, about: Mapping[str, Any]) -> dict[str, Any]:
    """Record `calls` calls in a row; returns the trace. `about` is kept in it, with what was measured.

    They are fewer where the device could not have all of their kernels queued.
    """
    with torch.inference_mode():
        _warm_up(subject.call, device)
        with subject.ranges():
            first, _ = _profiled(subject.marked, device, 1, 0.0)  # loads and starts what the profiler needs
        calls = queued(first, calls)
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


def queued(trace: Mapping[str, Any], calls: int) -> int:
    """How many calls the device takes at once, of at most `calls`. trace: of one call."""
    launches = sum(event.get("cat") in DEVICE for event in trace["traceEvents"])
    return max(1, min(calls, _QUEUE // max(1, launches)))


def save(trace: Mapping[str, Any], path: Path) -> None:
    """Write a trace for Perfetto or chrome://tracing; compressed if the name ends in .gz."""
    data = json.dumps(trace, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)


def load(path: Path) -> dict[str, Any]:
    """A trace that `save` or torch wrote."""
    data = path.read_bytes()
    trace: dict[str, Any] = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return trace


def _warm_up(call: Call, device: torch.device) -> None:
    end = time.perf_counter() + _WARM_SECONDS
    for _ in range(3):
        call()
    synchronize(device)
    while time.perf_counter() < end:
        call()
        synchronize(device)


def _typical(call: Call, device: torch.device, calls: int) -> float:
    """Microseconds a call, of `calls` calls in a row: the median of several times that."""
    work = _repeat(call, calls)
    samples = [_timed(work, device, host_clock(work) if device.type == "cuda" else 0.0) for _ in range(_BURSTS)]
    return statistics.median(samples) / calls


def _repeat(call: Call, calls: int) -> Call:
    def work() -> None:
        for _ in range(calls):
            call()

    return work


def _profiled(call: Call, device: torch.device, calls: int, host_us: float) -> tuple[dict[str, Any], float]:
    """The trace of `calls` calls in a row, and the microseconds of each; host_us: how long the host is at them."""
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
        return load(path), us / calls


def _timed(work: Call, device: torch.device, host_us: float) -> float:
    """Microseconds of the device's time, all of which is queued before it begins; on a CPU the host's."""
    synchronize(device)
    if device.type != "cuda":
        return host_clock(work)
    occupy(1.5 * host_us)
    return between(work)
