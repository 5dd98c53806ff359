"""Operands that a kernel does not find in the cache: copies that it goes through, and reading something else before.

With as many copies as fill the largest cache twice, each is gone when its turn comes again. Of small operands that many
would not fit into a sample; there are fewer, each is used once a sample, and a flush comes before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from autotune.measure.timers import Runnable, Work

_COPIES = 32  # at most


class Rotation:
    """Solves a problem on one copy of its operands after the other."""

    def __init__(self, steps: Sequence[Runnable]) -> None:
        self._steps = itertools.cycle(steps)

    def run(self, stream: int = 0) -> None:
        """Run the next copy's step."""
        next(self._steps).run(stream)


def cache_bytes(device: torch.device) -> int:
    """Bytes of the largest cache: L2 of a GPU; of a CPU what Linux tells, and at least 32 MiB, as it may not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = (path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return max([2**25, *(1024 * int(size.removesuffix("K")) for size in sizes)])


def copies_of(size: int, device: torch.device) -> int:
    """How many copies of operands of `size` bytes to rotate through: twice the cache, as far as that is reasonable."""
    return max(2, min(_COPIES, math.ceil(2 * cache_bytes(device) / size)))


@cache
def flush(device: torch.device) -> Work:
    """Work that reads twice the cache's size, so that nothing else is left in it, and nothing is to be written back."""
    filler = torch.ones(2 * cache_bytes(device) // 4, device=device)
    return filler.sum
