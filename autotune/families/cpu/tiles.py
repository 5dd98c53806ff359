"""Families that share templates/cpu/conv2d.h: tiles of pixels x output channels in vector registers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import Config, Launch, Parameter, Rules, require
from autotune.families.cpu.common import THREADS, CpuFamily, vector_registers
from autotune.ir import Epilogue, Problem

P = TypeVar("P", bound=Problem)

# For the cost: estimates for x86-64 cores of 2020 and later, not fitted.
_POINTERS = 10  # of a tile's pixels that general registers hold; the others are loaded again for each channel
_CACHE = 768 * 1024  # bytes of weights that stay in the L2 cache from one tile to the next
_CACHE_BYTES, _MEMORY_BYTES = 24, 16  # a cycle from that cache, and from beyond it


@dataclass(frozen=True)
class LoopExtents:
    """Extents of the loops over a convolution.

    Attributes:
        pixels: Output pixels.
        groups: Groups of channels.
        c: Input channels of a group, as the kernel sees them.
        k: Output channels of a group, as the kernel sees them.
        taps: Taps of the window.
        met: Taps that a tile computes on average; taps in padding are skipped.
    """

    pixels: int
    groups: int
    c: int
    k: int
    taps: int
    met: float


class TileFamily(CpuFamily[P]):
    """Tiles of pixels x output channels, whose operands a class derived from this one describes.

    Attributes:
        header: The header that defines `pixels`.
        pixels: The C++ class that iterates over a tile's pixels.
        layout: First letter of the weights' layout in autotune/ir/weight_layout.py; block_k follows it.
    """

    template = "cpu/conv2d.cpp.j2"
    header = "cpu/conv2d.h"
    pixels = "ForwardPixels"
    layout = "k"
    parameters = (
        Parameter("block_k", (8, 16, 32, 48, 64), "output channels of a tile"),
        Parameter("block_pixels", (1, 2, 4, 6, 8, 12, 14), "output pixels of a tile"),
        Parameter("unroll_c", (1, 2), "input channels an iteration"),
    )
    launch_parameters = (
        THREADS,
        Parameter("order", (0, 1), "tiles that follow each other share 0: their weights; 1: their input"),
    )

    @abstractmethod
    def extents(self, problem: P, config: Config) -> LoopExtents:
        """Return the extents of the loops."""

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield require_registers(rows=int(config["block_pixels"]), channels=int(config["block_k"]))

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        """Return all threads and one, with both orders of tiles."""
        orders = (0, 1) if _columns(self.extents(problem, config), config) > 1 else (0,)  # with one, both are the same
        return [{"threads": threads, "order": order} for threads in (0, 1) for order in orders]

    def cost(self, problem: P, config: Config, arch: Architecture) -> float:
        return _cost(self.extents(problem, config), config, arch)

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**config, "header": self.header, "pixels": self.pixels}

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": f"{self.layout}{config['block_k']}"}


def vectors(channels: int) -> int:
    """Return the vector registers that hold this many channels."""
    return max(1, channels // vector_registers()[1])


def require_registers(rows: int, channels: int) -> str | None:
    """Require that a tile's sums, one row of operand vectors and one scalar fit the vector registers."""
    registers, columns = vector_registers()[0], vectors(channels)
    needed = rows * columns + columns + 1
    return require(needed <= registers, f"a tile must fit {registers} vector registers; it needs {needed}")


def _columns(extents: LoopExtents, config: Config) -> int:
    """Return the blocks of output channels in all groups."""
    return extents.groups * ceil(extents.k / int(config["block_k"]))


def _cost(extents: LoopExtents, config: Config, arch: Architecture) -> float:
    """Estimate cycles of the busiest core: its tiles' loops over channels and taps, and a tile's time outside them."""
    block_k, block_pixels, unroll_c = (int(config[name]) for name in ("block_k", "block_pixels", "unroll_c"))
    columns = vectors(block_k)
    fma, loads = block_pixels * columns, block_pixels + columns + max(0, block_pixels - _POINTERS)
    weights = 4 * block_k / (_CACHE_BYTES if 4 * block_k * extents.c * extents.taps <= _CACHE else _MEMORY_BYTES)
    # A core does two multiply-adds and two loads a cycle; 4.5 cycles is the latency of a dependent multiply-add.
    step = max(fma / 2, loads / 2, 4.5, weights) + 0.2 / unroll_c
    beside = block_pixels * (10 + 8 * columns + 3 * extents.met)
    tiles = ceil(extents.pixels / block_pixels) * _columns(extents, config)
    return ceil(tiles / arch.processors) * (extents.met * extents.c * step + beside)
