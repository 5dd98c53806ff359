"""How long work takes on a device: samples of many launches, taken once they are steady.

A GPU sample is a replayed CUDA graph of many launches between two events, so that host cost stays out of it; with the
timer "events" the host launches one by one between them. On a CPU the host's clock serves both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import torch

TIMERS = ("graph", "events")
BUFFERS = ("resident", "rotating")

_SAMPLE_US = 400.0  # length of one GPU sample
_CPU_SAMPLE_US = 3000.0
_REPLAYS_US = 1000.0  # of a whole network's graph
_LAUNCHES = 100  # most launches in one GPU sample
_SHORT = 0.7  # of that length: a sample that is shorter is made anew, with more launches
_CYCLES_A_MICROSECOND = 2.0e3  # no slower than any GPU's clock, so a wait lasts at least as long as it is asked to
_STEADY = 0.98  # a sample that takes this share of the best so far, or more, is no progress

Work = Callable[[], object]


class Runnable(Protocol):
    """What can be verified and timed: a bound candidate, or anything else that solves the problem on a stream."""

    def run(self, stream: int = 0) -> None:
        """Enqueue the work on a CUDA stream, or do it on a CPU."""


@dataclass(frozen=True)
class Timing:
    """How candidates are timed.

    timer: of TIMERS. buffers: "resident" runs on the same operands again and again, which stay in L2 if they fit;
    "rotating" takes another copy each time, so that none is found in L2. energy: whether it is measured too.
    """

    timer: str = "graph"
    buffers: str = "resident"
    energy: bool = False


@dataclass(frozen=True)
class Sampler:
    """Takes samples: called, it returns the microseconds of one launch.

    work: enqueues `launches` of them; before: enqueued ahead of each sample and not timed. settled_us: the best sample
    that was taken while it was warmed up.
    """

    work: Work
    launches: int
    clock: Callable[[Work], float]
    before: Work | None = None
    settled_us: float = math.nan
    keep: object = None
    """Held because a graph runs on memory that nothing else keeps alive: a workspace, packed weights."""

    def __call__(self) -> float:
        """Take one sample."""
        if self.before:
            self.before()
        return self.clock(self.work) / self.launches


def sampler(
    step: Runnable,
    device: torch.device,
    timer: str = "graph",
    most: int | None = None,
    before: Work | None = None,
    worth: float = math.inf,
) -> Sampler:
    """A sampler of `step`, warmed up.

    most: launches in one sample, if not as many as make it long enough; before: not timed, ahead of each sample.
    worth: what takes more microseconds at first is not worth the rest of the warming up.
    """
    made = (
        _cuda_sampler(step, device, timer, most, before) if device.type == "cuda" else _host_sampler(step, most, before)
    )
    return replace(made, settled_us=settle(made, worth=worth))


def _host_sampler(step: Runnable, most: int | None, before: Work | None) -> Sampler:
    def repeat(times: int) -> Work:
        def work() -> None:
            for _ in range(times):
                step.run()

        return work

    host_clock(repeat(1))
    repeats = max(1, min(most or 10**9, round(_CPU_SAMPLE_US / (host_clock(repeat(2)) / 2))))
    return Sampler(repeat(repeats), repeats, host_clock, before)


def _cuda_sampler(step: Runnable, device: torch.device, timer: str, most: int | None, before: Work | None) -> Sampler:
    def repeat(times: int) -> None:
        for _ in range(times):
            step.run(stream_of(device))

    def captured(times: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            repeat(times)
        return graph

    with library_choices():
        side = torch.cuda.Stream(device)
        with torch.cuda.stream(side):
            repeat(3)
            once = between(lambda: repeat(5)) / 5
        side.synchronize()
        repeats = _launches(once, most)
        if timer == "events":

            def launch_all() -> None:
                with library_choices():
                    repeat(repeats)

            return Sampler(launch_all, repeats, between, before)
        graph = captured(repeats)
        taken = min(between(graph.replay) for _ in range(2))
        if taken < _SHORT * _SAMPLE_US and (more := _launches(taken / repeats, most)) > repeats:
            repeats, graph = more, captured(more)  # the host was what took so long
    return Sampler(graph.replay, repeats, between, before, keep=step)


def _launches(once: float, most: int | None) -> int:
    """How many of so many microseconds make a sample long enough."""
    return max(3, min(most or _LAUNCHES, round(_SAMPLE_US / max(1.0, once))))


def library_choices() -> AbstractContextManager[None]:
    """Let cuDNN try its algorithms for torch's operators and keep the fastest: what a user who cares would do."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True)


def replay_sampler(replay: Work) -> Sampler:
    """A sampler of a graph that is replayed until a sample is long enough, warmed up."""
    replay()
    replays = max(1, min(10, round(_REPLAYS_US / between(replay))))

    def work() -> None:
        for _ in range(replays):
            replay()

    made = Sampler(work, replays, between)
    settle(made)
    return made


def host_clock(work: Work) -> float:
    """Microseconds that `work` takes by the host's clock."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e6


def between(work: Work) -> float:
    """Microseconds between two events around what `work` enqueues on the current stream."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def occupy(us: float) -> None:
    """Keep the current stream busy for so many microseconds at least, while the host queues what is to come."""
    torch.cuda._sleep(int(us * _CYCLES_A_MICROSECOND))


def settle(sample: Callable[[], float], seconds: float = 0.0, limit: float = 0.05, worth: float = math.inf) -> float:
    """Warm up: take samples until three in a row bring less than 2 %, for `seconds` at least and `limit` at most.

    Caches fill, code is loaded, and clocks that rise with the work show as samples that are still getting shorter.
    Returns the shortest. worth: a first sample above this ends it.
    """
    best, quiet, started = math.inf, 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < limit and (quiet < 3 or elapsed < seconds):
        now = sample()
        quiet = quiet + 1 if now > _STEADY * best else 0
        best = min(best, now)
        if best > worth:
            break
    return best


def stream_of(device: torch.device) -> int:
    """The handle of torch's current stream; 0 on a CPU."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def synchronize(device: torch.device) -> None:
    """Wait for everything that was queued on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
