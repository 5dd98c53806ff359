"""The gradient of a convolution by its input on the CPU: the tiles of the forward pass, channels exchanged."""

from __future__ import annotations

from autotune.families.base import Config
from autotune.families.cpu import tiles
from autotune.ir import Conv2dDgrad, Problem


def _work(problem: Problem, config: Config) -> tiles.Work:
    assert isinstance(problem, Conv2dDgrad)
    pixels, taps, groups = problem.n * problem.h * problem.w, problem.r * problem.s, problem.groups
    met = taps * problem.n * problem.p * problem.q / pixels
    return tiles.Work(pixels, groups, problem.k // groups, problem.c // groups, taps, met)


FAMILY = tiles.family("cpu_conv2d_dgrad", Conv2dDgrad, "cpu/conv2d_dgrad.h", "GradientPixels", _work, layout="c")
