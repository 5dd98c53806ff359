"""Timers: samples of many launches on a device, taken after a warm-up, and in rounds of all candidates.

A GPU sample is a replayed CUDA graph of many launches between two CUDA events, so it contains no host time. With the
timer "events" the host launches one by one between the events. On a CPU both timers read the host's clock.

In interleaved rounds all candidates are sampled in every round, so that drift affects all of them alike.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch

TIMERS = ("graph", "events")
BUFFERS = ("resident", "rotating")

_SAMPLE_US = 400.0
"""Length of one GPU sample."""
_CPU_SAMPLE_US = 3000.0
"""Length of one CPU sample; longer, because the clock includes the scheduler's noise."""
_REPLAYS_US = 1000.0
"""Length of one sample of a whole network."""
_MAX_REPLAYS = 10
"""Most runs of a network in one sample."""
_MAX_LAUNCHES = 100
"""Most launches in one GPU sample."""
_LEAST_LAUNCHES = 3
"""Launches in one GPU sample of a kernel that is shorter than _SAMPLE_US."""
_SHORT = 0.7
"""A GPU sample shorter than this share of _SAMPLE_US is captured again with more launches."""
_STEADY = 0.98
"""A warm-up sample that takes at least this share of the shortest one so far shows no progress."""
_STEADY_SAMPLES = 3
"""Samples in a row without progress that end the warm-up."""

Call = Callable[[], object]
"""Does or enqueues work; the result is ignored."""


class Runnable(Protocol):
    """Anything that can be verified and timed: a bound candidate, or other code that solves the problem."""

    def run(self, stream: int = 0) -> None:
        """Enqueue the work on a CUDA stream, or do it on a CPU."""


@dataclass(frozen=True)
class Timing:
    """Options of the timing of candidates.

    timer: One of TIMERS.
    buffers: "resident" uses the same tensors in each launch, so they stay in L2 if they fit; "rotating" uses another
        copy in each launch, so that nothing is found in L2.
    energy: Whether energy is measured too.
    """

    timer: str = "graph"
    buffers: str = "resident"
    energy: bool = False


@dataclass(frozen=True)
class Sampler:
    """Takes samples: a call returns the microseconds of one launch.

    work: Enqueues `launches` launches.
    clock: Returns the microseconds of `work`.
    setup: Called ahead of each sample, and not timed.
    warm_us: Shortest sample of the warm-up.
    is_slow: Whether a sample is a single launch by the host, because that takes longer than `slow_launch_us`.
    keep: Kept alive because the CUDA graph uses its memory: a workspace, packed weights.
    """

    work: Call
    launches: int
    clock: Callable[[Call], float]
    setup: Call | None = None
    warm_us: float = math.nan
    is_slow: bool = False
    keep: object = None

    def __call__(self) -> float:
        """Take one sample."""
        if self.setup:
            self.setup()
        return self.clock(self.work) / self.launches


def sampler(
    step: Runnable,
    device: torch.device,
    timer: str = "graph",
    max_launches: int | None = None,
    setup: Call | None = None,
    slow_us: float = math.inf,
    slow_launch_us: float = math.inf,
) -> Sampler:
    """Return a warm sampler of `step`.

    Args:
        step: What is timed.
        device: The device that it runs on.
        timer: One of TIMERS.
        max_launches: Most launches in one sample; None for as many as make the sample long enough.
        setup: Called ahead of each sample, and not timed.
        slow_us: If the first sample takes more microseconds per launch, the warm-up ends with it.
        slow_launch_us: If a launch by the host takes more microseconds on a GPU, there is no warm-up, and a sample is a
            single launch by the host.
    """
    made = (
        _cuda_sampler(step, device, timer, max_launches, setup, slow_launch_us)
        if device.type == "cuda"
        else _host_sampler(step, max_launches, setup)
    )
    return made if made.is_slow else replace(made, warm_us=warm_up(made, slow_us=slow_us))


def _host_sampler(step: Runnable, max_launches: int | None, setup: Call | None) -> Sampler:
    def repeat(times: int) -> Call:
        def work() -> None:
            for _ in range(times):
                step.run()

        return work

    host_clock(repeat(1))
    launches = max(1, min(max_launches or 10**9, round(_CPU_SAMPLE_US / (host_clock(repeat(2)) / 2))))
    return Sampler(repeat(launches), launches, host_clock, setup)


def _cuda_sampler(
    step: Runnable,
    device: torch.device,
    timer: str,
    max_launches: int | None,
    setup: Call | None,
    slow_launch_us: float,
) -> Sampler:
    def repeat(times: int) -> None:
        stream = stream_of(device)  # once: torch takes 10 us to find it
        for _ in range(times):
            step.run(stream)

    def captured(times: int) -> torch.cuda.CUDAGraph:
        # torch.cuda.graph would also return all free memory to the driver, which takes a millisecond each time.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            graph.capture_begin()
            try:
                repeat(times)
            finally:
                graph.capture_end()
        return graph

    with library_choices():
        side = torch.cuda.Stream(device)
        with torch.cuda.stream(side):
            repeat(1)
            if (once := between(lambda: repeat(1))) > slow_launch_us:

                def launch() -> None:
                    with library_choices():
                        repeat(1)

                return Sampler(launch, 1, between, setup, once, is_slow=True)
            if once < _SAMPLE_US:  # else one launch is as good a first guess as five
                repeat(2)
                once = between(lambda: repeat(5)) / 5
        side.synchronize()
        launches = _launches_per_sample(once, max_launches)
        if timer == "events":

            def launch_all() -> None:
                with library_choices():
                    repeat(launches)

            return Sampler(launch_all, launches, between, setup)
        graph = captured(launches)
        taken = min(between(graph.replay) for _ in range(2))
        if taken < _SHORT * _SAMPLE_US and (more := _launches_per_sample(taken / launches, max_launches)) > launches:
            launches, graph = more, captured(more)  # `once` was host time: the host launched slower than the GPU ran
    return Sampler(graph.replay, launches, between, setup, keep=step)


def _launches_per_sample(once_us: float, max_launches: int | None) -> int:
    """Return how many launches of `once_us` microseconds make a GPU sample long enough.

    A launch that is as long as a sample is one: the time between two events is exact to about a microsecond.
    """
    least = _LEAST_LAUNCHES if once_us < _SAMPLE_US else 1
    return max(least, min(max_launches or _MAX_LAUNCHES, round(_SAMPLE_US / max(1.0, once_us))))


def library_choices() -> AbstractContextManager[None]:
    """Let torch's operators try all cuDNN algorithms and keep the fastest, as a user who tunes torch would do."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True)


def replay_sampler(replay: Call, device: torch.device) -> Sampler:
    """Return a warm sampler of a whole network, which runs until a sample is long enough."""
    clock = between if device.type == "cuda" else host_clock
    replay()
    replays = max(1, min(_MAX_REPLAYS, round(_REPLAYS_US / clock(replay))))

    def work() -> None:
        for _ in range(replays):
            replay()

    made = Sampler(work, replays, clock)
    warm_up(made)
    return made


def host_clock(work: Call) -> float:
    """Return the microseconds of `work` by the host's clock."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e6


def between(work: Call) -> float:
    """Return the microseconds between two CUDA events around what `work` enqueues on the current stream."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    stream = torch.cuda.current_stream()
    start.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def warm_up(sample: Callable[[], float], seconds: float = 0.0, limit: float = 0.05, slow_us: float = math.inf) -> float:
    """Take samples until three in a row are less than 2 % shorter than the shortest one before them.

    During the warm-up caches fill, code is loaded, and the GPU raises its clocks; all of it makes samples shorter.

    Args:
        sample: Takes one sample.
        seconds: Least duration.
        limit: Most seconds, also if samples still get shorter.
        slow_us: A first sample longer than this ends the warm-up.

    Returns:
        The shortest sample.
    """
    best, steady, started = math.inf, 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < limit and (steady < _STEADY_SAMPLES or elapsed < seconds):
        now = sample()
        steady = steady + 1 if now > _STEADY * best else 0
        best = min(best, now)
        if best > slow_us:
            break
    return best


def stream_of(device: torch.device) -> int:
    """Return the handle of torch's current CUDA stream; 0 on a CPU."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def synchronize(device: torch.device) -> None:
    """Wait for all work that was queued on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_PAUSE_SECONDS = 0.1
"""Pause after a round in which the device was slowed down, so that a GPU cools."""
_REPEATS = 5
"""Most rounds that are repeated because the device was slowed down."""

THROTTLED = "throttled"
"""Detail of a measurement: the number of its rounds in which the device was slowed down."""

Sample = TypeVar("Sample")


@dataclass(frozen=True)
class Rounds:
    """Samples in microseconds, one list for each sampler with one value for each round.

    throttled: number of rounds in `samples` during which the device was slowed down.
    repeated: samples of the rounds that were discarded and repeated because the device was slowed down.
    """

    samples: list[list[float]]
    throttled: int = 0
    repeated: list[list[float]] = field(default_factory=list)


def shuffled_rounds(samplers: Sequence[Callable[[], Sample]]) -> Iterator[list[Sample]]:
    """Yield rounds without end: one sample of each sampler, taken in a new random order in each round.

    Clocks, temperature and other users change over time; they affect all samples of one round alike, whatever the order
    of the samplers. The orders are the same in every run.

    Yields:
        The samples of one round, in the order of `samplers`.
    """
    order, shuffle = list(range(len(samplers))), random.Random(0).shuffle
    while True:
        shuffle(order)
        taken = {i: samplers[i]() for i in order}
        yield [taken[i] for i in range(len(samplers))]


def interleave(
    samplers: Sequence[Callable[[], float]], rounds: int, slowed: Callable[[], object] = lambda: None
) -> Rounds:
    """Take `rounds` samples of each sampler in interleaved rounds.

    Args:
        samplers: Each call takes one sample.
        rounds: Number of samples of each sampler.
        slowed: Called after each round; a true value means that the device was slowed down during the round. Such a
            round is repeated after a pause, at most _REPEATS times. If the device stays slow, slow rounds make up the
            number, and the result says how many.
    """
    clean: list[list[float]] = []
    slow: list[list[float]] = []
    for taken in shuffled_rounds(samplers):
        was_slowed = bool(slowed())
        (slow if was_slowed else clean).append(taken)
        if len(clean) >= rounds or len(clean) + len(slow) >= rounds + _REPEATS:
            break
        if was_slowed and len(slow) <= _REPEATS:
            time.sleep(_PAUSE_SECONDS)
    missing = rounds - len(clean)
    kept, repeated = clean + slow[len(slow) - missing :], slow[: len(slow) - missing]
    return Rounds(_by_sampler(kept, len(samplers)), missing, _by_sampler(repeated, len(samplers)))


def throttling(rounds: Rounds, index: int) -> dict[str, Any]:
    """Return the details of rounds in which the device was slowed down; empty if there were none."""
    details: dict[str, Any] = {THROTTLED: rounds.throttled} if rounds.throttled else {}
    if any(rounds.repeated):
        details["repeated_us"] = [round(sample, 4) for sample in rounds.repeated[index]]
    return details


def _by_sampler(rounds: list[list[float]], count: int) -> list[list[float]]:
    return [[taken[i] for taken in rounds] for i in range(count)]
