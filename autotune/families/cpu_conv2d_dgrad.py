"""The gradient of a convolution by its input on the CPU: the tiles of the forward pass, channels exchanged."""

from __future__ import annotations

from autotune.arch import Architecture
from autotune.families import cpu_tiles
from autotune.families.base import SHARED_LIBRARY, Config, Family, Launch
from autotune.problem import Conv2dDgrad, Problem


def _work(problem: Problem) -> cpu_tiles.Work:
    assert isinstance(problem, Conv2dDgrad)
    pixels, taps, groups = problem.n * problem.h * problem.w, problem.r * problem.s, problem.groups
    met = taps * problem.n * problem.p * problem.q / pixels
    return cpu_tiles.Work(pixels, groups, problem.k // groups, problem.c // groups, taps, met)


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    return cpu_tiles.launches(_work(problem), config)


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    return cpu_tiles.cost(_work(problem), config, arch)


FAMILY = Family(
    name="cpu_conv2d_dgrad",
    operator=Conv2dDgrad,
    kind=SHARED_LIBRARY,
    template="cpu/conv2d.cpp.j2",
    architectures=("cpu",),
    parameters=cpu_tiles.PARAMETERS,
    legal=cpu_tiles.legal,
    cost=_cost,
    context=lambda config, arch, dtype: {**config, "header": "cpu/conv2d_dgrad.h", "pixels": "GradientPixels"},
    launch_parameters=cpu_tiles.LAUNCH_PARAMETERS,
    launches=_launches,
    weight_layouts=lambda config: {"weight": f"c{config['block_k']}"},
)
