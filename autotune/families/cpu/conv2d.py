"""Convolutions on the CPU: forward, with parts of a batch normalization, and the gradients.

A matrix product is a convolution with a single tap.
"""

from __future__ import annotations

from math import ceil
from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import Config, Parameter, Rules
from autotune.families.cpu.common import WITH_BYTES, CpuFamily
from autotune.families.cpu.tiles import LoopExtents, TileFamily, require_registers, vectors
from autotune.ir import Epilogue
from autotune.ir.operators import (
    Conv2d,
    Conv2dBroadcast,
    Conv2dDgrad,
    Conv2dGradientSums,
    Conv2dStatistics,
    Conv2dWgrad,
    Convolution,
    Gemm,
)

P = TypeVar("P", bound=Conv2dStatistics | Conv2dGradientSums)


def _inside(problem: Convolution, axis: int) -> float:
    """Return the share of an axis's taps that meet the image and not its padding; axis: 0 is h, 1 is w."""
    out, size, taps = ((problem.p, problem.h, problem.r), (problem.q, problem.w, problem.s))[axis]
    stride, pad, dilation = problem.stride[axis], problem.pad[axis], problem.dilation[axis]
    inside = sum(0 <= i * stride - pad + tap * dilation < size for i in range(out) for tap in range(taps))
    return inside / (out * taps)


def _extents(problem: Convolution | Gemm, config: Config) -> LoopExtents:
    """Return the extents of the loops over a convolution."""
    conv = problem.as_conv2d if isinstance(problem, Gemm) else problem
    taps, block_pixels = conv.r * conv.s, int(config["block_pixels"])
    met = float(taps)
    if block_pixels < conv.n * conv.q:  # most tiles lie in one output row, and skip rows of padding,
        met *= _inside(conv, 0)
    if conv.n % block_pixels == 0:  # or even at one pixel of several images, and skip all padding
        met *= _inside(conv, 1)
    return LoopExtents(
        pixels=conv.n * conv.p * conv.q,
        groups=conv.groups,
        c=conv.c // conv.groups,
        k=conv.k // conv.groups,
        taps=taps,
        met=met,
    )


class CpuConv2d(TileFamily[Conv2d | Conv2dBroadcast | Gemm]):
    """Direct convolution."""

    name = "cpu_conv2d"
    operator = (Conv2d, Conv2dBroadcast, Gemm)
    dtypes = WITH_BYTES

    def extents(self, problem: Conv2d | Conv2dBroadcast | Gemm, config: Config) -> LoopExtents:
        return _extents(problem, config)


class CpuConv2dDgrad(TileFamily[Conv2dDgrad]):
    """Input gradient: the tiles of the forward pass with channels exchanged."""

    name = "cpu_conv2d_dgrad"
    operator = Conv2dDgrad
    header = "cpu/conv2d_dgrad.h"
    pixels = "GradientPixels"
    layout = "c"

    def extents(self, problem: Conv2dDgrad, config: Config) -> LoopExtents:
        pixels, taps = problem.n * problem.h * problem.w, problem.r * problem.s
        return LoopExtents(
            pixels=pixels,
            groups=problem.groups,
            c=problem.k // problem.groups,
            k=problem.c // problem.groups,
            taps=taps,
            met=taps * problem.n * problem.p * problem.q / pixels,
        )


class _WithNormFamily(TileFamily[P]):
    """Convolutions that compute a part of a batch normalization behind their result."""

    def extents(self, problem: P, config: Config) -> LoopExtents:
        return _extents(problem.convolution, config)


class CpuConv2dStatistics(_WithNormFamily[Conv2dStatistics]):
    """Direct convolution, then the statistics of its result for a batch normalization in training."""

    name = "cpu_conv2d_statistics"
    operator = Conv2dStatistics
    template = "cpu/conv2d_statistics.cpp.j2"


class CpuConv2dGradientSums(_WithNormFamily[Conv2dGradientSums]):
    """Input gradient of a convolution behind a norm, as a convolution, then the sums of the norm's gradient."""

    name = "cpu_conv2d_gradient_sums"
    operator = Conv2dGradientSums
    template = "cpu/conv2d_gradient_sums.cpp.j2"


class CpuConv2dWgrad(CpuFamily[Conv2dWgrad]):
    """Weight gradient: a tile of output x input channels sums over all pixels."""

    name = "cpu_conv2d_wgrad"
    operator = Conv2dWgrad
    template = "cpu/conv2d_wgrad.cpp.j2"
    parameters = (
        Parameter("block_k", (1, 2, 4, 6, 8, 12), "output channels of a tile"),
        Parameter("block_c", (8, 16, 32, 64), "input channels of a tile"),
    )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield require_registers(rows=int(config["block_k"]), channels=int(config["block_c"]))

    def cost(self, problem: Conv2dWgrad, config: Config, arch: Architecture) -> float:
        """Estimate cycles of the busiest core for one pixel; channels behind the last block are processed one by one.

        A core does two multiply-adds and two loads a cycle; 4.5 cycles is the latency of a dependent multiply-add.
        """
        block_k, block_c = int(config["block_k"]), int(config["block_c"])
        columns = vectors(block_c)
        step = max(block_k * columns / 2, (block_k + columns) / 2, 4.5)
        k, c = problem.k // problem.groups, problem.c // problem.groups
        tiles = (k // block_k + k % block_k) * (c // block_c + c % block_c)
        return ceil(problem.groups * problem.r * problem.s * tiles / arch.processors) * step


FAMILIES = (CpuConv2d(), CpuConv2dDgrad(), CpuConv2dStatistics(), CpuConv2dGradientSums(), CpuConv2dWgrad())
