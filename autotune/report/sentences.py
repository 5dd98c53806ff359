"""The words of a report: numbers with their nouns, times, and sentences about a network."""

from __future__ import annotations

import time
from collections.abc import Iterator

from autotune.core import number
from autotune.report.records import CUDNN, TORCH, NetworkTime


def plural(count: int, word: str) -> str:
    """Return a number with a word, such as "1 layer" or "2 layers"."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def clock(seconds: float) -> str:
    """Return a time in seconds since 1970 as date and time in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def size(network: NetworkTime) -> str:
    """Return what tells networks of the same class apart, such as "54 layers, 8.21 GFLOP"."""
    work = f", {network.flops / 1e9:.3g} GFLOP" if network.flops else ""
    return f"{plural(len(network.layers), 'layer')}{work}"


def about(network: NetworkTime) -> Iterator[str]:
    """Yield sentences about the times of a network, and about what the database does not tell of it."""
    count = plural(len(network.layers), "layer")
    total = f"{count}; the sum of their times, each alone, is {number(network.sum_us)} us"
    yield total
    if network.precompiled:
        yield "This plan is for machines without a compiler"
    if network.us:
        spread = f" with a spread of {number(network.spread_us)} us" if network.spread_us else ""
        yield f"The whole network takes {number(network.us)} us{spread}"
        if network.winners_us:
            yield f"With the winner of each layer and without alternatives it takes {number(network.winners_us)} us"
        for name, us in network.torch_us.items():
            yield f"PyTorch's operators for the whole network ({name}) take {number(us)} us"
        if network.is_throttled:
            yield "These times are too long, because other processes or heat slowed the device down: tune again"
    else:
        yield "It runs on the code of torch.compile, which was not timed"
    if network.us and not network.torch_us:
        yield "It was not compared with PyTorch's operators or torch.compile"
    yield network.verified or "autotune verify has not run it on this machine"
    if network.taken:
        yield f"Alternatives taken: {', '.join(network.taken)}"
    if unknown := sum(one.layer is None for one in network.layers):
        yield f"For {plural(unknown, 'layer')} no stored trial tells the problem, so only the time is shown"
    if not any(map(network.has_times_of, (CUDNN, TORCH))):
        yield "No times of cuDNN or PyTorch are stored for these layers"
