"""Named ranges on the timeline of a profiler, such as Nsight Systems; next to nothing where none is attached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def span(name: str, device: torch.device) -> Iterator[None]:
    """An NVTX range around what happens inside, on a GPU."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()
