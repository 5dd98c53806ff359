"""Cold-cache timing: rotates through copies of the tensors, and flushes the cache before a sample.

With copies that fill the largest cache twice, each copy has left the cache when its turn comes again. Small tensors
would need more copies than a sample has launches. There are at most _COPIES copies of them, each is used once in a
sample, and a flush comes before the sample.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from autotune.measure.timers import Call, Runnable

_COPIES = 32
"""Most copies of the tensors; a sample has fewer launches than a few times this."""
_LEAST_CACHE = 2**25
"""Bytes assumed for a CPU's cache if Linux tells less: a virtual machine may not show the last level."""


class RotatingBuffers:
    """Runs steps in turn; each step solves the same problem on its own copy of the tensors."""

    def __init__(self, steps: Sequence[Runnable]) -> None:
        self._steps = itertools.cycle(steps)

    def run(self, stream: int = 0) -> None:
        """Run the next copy's step."""
        next(self._steps).run(stream)


def cache_bytes(device: torch.device) -> int:
    """Return the bytes of the largest cache: L2 of a GPU, the last level of a CPU but at least 32 MiB."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = (path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return max([_LEAST_CACHE, *(1024 * int(size.removesuffix("K")) for size in sizes)])


def copies_of(size: int, device: torch.device) -> int:
    """Return how many copies of tensors of `size` bytes to rotate through: 2 to 32, twice the cache if possible."""
    return max(2, min(_COPIES, math.ceil(2 * cache_bytes(device) / size)))


@cache
def flush(device: torch.device) -> Call:
    """Return a call that reads twice the cache's size, so that the cache holds nothing else and no dirty lines."""
    filler = torch.ones(2 * cache_bytes(device) // 4, device=device)
    return filler.sum
