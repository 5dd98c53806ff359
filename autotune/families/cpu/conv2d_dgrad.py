"""Input gradient of a convolution on the CPU: the tiles of the forward pass with channels exchanged."""

from __future__ import annotations

from autotune.families.base import Config
from autotune.families.cpu import tiles
from autotune.ir import Conv2dDgrad


def _extents(problem: Conv2dDgrad, config: Config) -> tiles.LoopExtents:
    pixels, taps = problem.n * problem.h * problem.w, problem.r * problem.s
    return tiles.LoopExtents(
        pixels=pixels,
        groups=problem.groups,
        c=problem.k // problem.groups,
        k=problem.c // problem.groups,
        taps=taps,
        met=taps * problem.n * problem.p * problem.q / pixels,
    )


FAMILY = tiles.family(
    "cpu_conv2d_dgrad",
    Conv2dDgrad,
    header="cpu/conv2d_dgrad.h",
    pixels="GradientPixels",
    extents=_extents,
    layout="c",
)
