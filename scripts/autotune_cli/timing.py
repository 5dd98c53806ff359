"""Times calls in microseconds: bursts, single calls, interleaved rounds and their statistics.

`stream` is the time per call of back-to-back calls. `latency` is the time of one call from idle to idle device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from autotune import measure
from autotune.measure import Call, between, host_clock, median_interval, shuffled_rounds, synchronize

SLICE_SECONDS = 0.04  # time of one callable in a round: short, so that clock drift affects all callables alike
MIN_ROUNDS = 6  # fewer give no 95 % interval: all of n values lie on one side of the median with probability 2 / 2**n


@dataclass(frozen=True)
class Spread:
    """Median, 10th and 90th percentile of the samples, in microseconds unless a field says otherwise."""

    median: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True)
class Ratio:
    """Median of the ratios of the rounds, with its 95 % confidence interval."""

    median: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True)
class Samples:
    """Microseconds per call of one callable: a burst's mean, and single calls, for each round.

    sm_mhz: The GPU's clock at the end of each burst; empty where it is not known.
    """

    stream: list[float] = field(default_factory=list)
    latency: list[list[float]] = field(default_factory=list)
    sm_mhz: list[float] = field(default_factory=list)


def burst_us(call: Call, device: torch.device, calls: int) -> float:
    """Return the microseconds per call of back-to-back calls, by events on a GPU and by the host clock on a CPU."""
    call()  # not timed: fills the caches, and keeps the GPU busy until the first call of the burst arrives

    def burst() -> None:
        for _ in range(calls):
            call()

    return (between if device.type == "cuda" else host_clock)(burst) / calls


def latency_us(call: Call, device: torch.device) -> float:
    """Return the microseconds of one call from idle to idle device, by the host clock."""
    synchronize(device)

    def finish() -> None:
        call()
        synchronize(device)

    return host_clock(finish)


def warm_up(call: Call, device: torch.device, seconds: float = 0.5, limit: float = 20.0) -> None:
    """Call for at least `seconds`, until the times are steady, and for at most `limit` seconds.

    The first call is not counted, because it may compile.
    """
    burst_us(call, device, 1)
    calls = _calls_in(SLICE_SECONDS / 2, burst_us(call, device, 1))
    measure.warm_up(lambda: burst_us(call, device, calls), seconds, limit)


def interleave(
    calls: Mapping[str, Call],
    device: torch.device,
    seconds: float,
    progress: Callable[[float], None] = lambda fraction: None,
) -> dict[str, Samples]:
    """Time warm callables in interleaved rounds, for about `seconds` each.

    In each round every callable runs one burst and several single calls, in a new random order. Drift of clocks and
    temperature, and other users, then affect all callables alike and cancel in the ratios of a round.

    Args:
        calls: The callables by name.
        device: Where they run.
        seconds: Time for each of them.
        progress: Called with the fraction done.

    Returns:
        The samples by name.
    """
    counts = {name: _calls_in(SLICE_SECONDS / 2, burst_us(call, device, 1)) for name, call in calls.items()}
    monitor = measure.Monitor(device)

    def sample(name: str) -> tuple[float, float | None, list[float]]:
        call, count = calls[name], counts[name]
        return burst_us(call, device, count), monitor.sm_mhz(), [latency_us(call, device) for _ in range(count)]

    samples = {name: Samples() for name in calls}
    budget = seconds * len(calls)
    start = time.perf_counter()
    for rounds, taken in enumerate(shuffled_rounds([partial(sample, name) for name in calls]), 1):
        for name, (stream, clock, latency) in zip(calls, taken, strict=True):
            samples[name].stream.append(stream)
            samples[name].latency.append(latency)
            if clock is not None:
                samples[name].sm_mhz.append(clock)
        done = min(rounds / MIN_ROUNDS, (time.perf_counter() - start) / budget if budget else 1.0)
        progress(done)
        if done >= 1:
            break
    return samples


def spread(values: Sequence[float]) -> Spread:
    """Return the median, 10th and 90th percentile of at least two values."""
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return Spread(statistics.median(values), tenths[0], tenths[-1], len(values))


def paired_ratio(values: Sequence[float], base: Sequence[float]) -> Ratio:
    """Return the median of values / base over the rounds, with its confidence interval."""
    ratios = [ours / theirs for ours, theirs in zip(values, base, strict=True)]
    return Ratio(statistics.median(ratios), *median_interval(ratios), len(ratios))


def _calls_in(seconds: float, us: float) -> int:
    """Return the number of calls of `us` microseconds that fit into `seconds`, at least 1."""
    return max(1, int(seconds * 1e6 / us))
