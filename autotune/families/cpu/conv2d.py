"""Direct convolution on the CPU; a matrix product is a convolution with a single tap."""

from __future__ import annotations

from autotune.families.base import Config
from autotune.families.cpu import tiles
from autotune.families.cpu.common import WITH_BYTES
from autotune.ir import Conv2d, Gemm


def _inside(problem: Conv2d, axis: int) -> float:
    """Return the share of an axis's taps that meet the image and not its padding; axis: 0 is h, 1 is w."""
    out, size, taps = ((problem.p, problem.h, problem.r), (problem.q, problem.w, problem.s))[axis]
    stride, pad, dilation = problem.stride[axis], problem.pad[axis], problem.dilation[axis]
    inside = sum(0 <= i * stride - pad + tap * dilation < size for i in range(out) for tap in range(taps))
    return inside / (out * taps)


def extents(problem: Conv2d | Gemm, config: Config) -> tiles.LoopExtents:
    """Return the extents of the loops over a convolution."""
    conv = problem.as_conv2d if isinstance(problem, Gemm) else problem
    taps, block_pixels = conv.r * conv.s, int(config["block_pixels"])
    met = float(taps)
    if block_pixels < conv.n * conv.q:  # most tiles lie in one output row, and skip rows of padding,
        met *= _inside(conv, 0)
    if conv.n % block_pixels == 0:  # or even at one pixel of several images, and skip all padding
        met *= _inside(conv, 1)
    return tiles.LoopExtents(
        pixels=conv.n * conv.p * conv.q,
        groups=conv.groups,
        c=conv.c // conv.groups,
        k=conv.k // conv.groups,
        taps=taps,
        met=met,
    )


_OPERATORS: tuple[type[Conv2d | Gemm], ...] = (Conv2d, Gemm)

FAMILY = tiles.family(
    "cpu_conv2d",
    _OPERATORS,
    header="cpu/conv2d.h",
    pixels="ForwardPixels",
    extents=extents,
    layout="k",
    dtypes=WITH_BYTES,
)
