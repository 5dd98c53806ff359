"""Direct convolution on the CPU, and the matrix product, which is one of a single tap."""

from __future__ import annotations

from autotune.families.base import Config
from autotune.families.cpu import tiles
from autotune.families.cpu.common import WITH_BYTES
from autotune.ir import Conv2d, Gemm, Problem


def _inside(problem: Conv2d, axis: int) -> float:
    """The share of an axis's taps that meet the image and not its padding."""
    out, size, taps = ((problem.p, problem.h, problem.r), (problem.q, problem.w, problem.s))[axis]
    stride, pad, dilation = problem.stride[axis], problem.pad[axis], problem.dilation[axis]
    inside = sum(0 <= i * stride - pad + tap * dilation < size for i in range(out) for tap in range(taps))
    return inside / (out * taps)


def _work(problem: Problem, config: Config) -> tiles.Work:
    problem = problem.as_conv2d if isinstance(problem, Gemm) else problem
    assert isinstance(problem, Conv2d)
    taps, block_pixels = problem.r * problem.s, int(config["block_pixels"])
    met = float(taps)
    if block_pixels < problem.n * problem.q:  # most tiles lie in one output row,
        met *= _inside(problem, 0)
    if problem.n % block_pixels == 0:  # or even at one place of several images, and skip its padding
        met *= _inside(problem, 1)
    groups = problem.groups
    return tiles.Work(problem.n * problem.p * problem.q, groups, problem.c // groups, problem.k // groups, taps, met)


FAMILY = tiles.family("cpu_conv2d", (Conv2d, Gemm), "cpu/conv2d.h", "ForwardPixels", _work, "k", WITH_BYTES)
