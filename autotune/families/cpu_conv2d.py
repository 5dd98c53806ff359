"""Direct convolution on the CPU, and the matrix product, which is one of a single tap."""

from __future__ import annotations

from autotune.arch import Architecture
from autotune.families import cpu_tiles
from autotune.families.base import SHARED_LIBRARY, Config, Family, Launch
from autotune.problem import Conv2d, Gemm, Problem


def _inside(problem: Conv2d, axis: int) -> float:
    """The share of an axis's taps that meet the image and not its padding."""
    out, size, taps = ((problem.p, problem.h, problem.r), (problem.q, problem.w, problem.s))[axis]
    stride, pad, dilation = problem.stride[axis], problem.pad[axis], problem.dilation[axis]
    inside = sum(0 <= i * stride - pad + tap * dilation < size for i in range(out) for tap in range(taps))
    return inside / (out * taps)


def _work(problem: Problem, config: Config) -> cpu_tiles.Work:
    problem = problem.as_conv2d if isinstance(problem, Gemm) else problem
    assert isinstance(problem, Conv2d)
    taps, block_pixels = problem.r * problem.s, int(config["block_pixels"])
    met = float(taps)
    if block_pixels < problem.n * problem.q:  # most tiles lie in one output row,
        met *= _inside(problem, 0)
    if problem.n % block_pixels == 0:  # or even at one place of several images, and skip its padding
        met *= _inside(problem, 1)
    groups = problem.groups
    return cpu_tiles.Work(
        problem.n * problem.p * problem.q, groups, problem.c // groups, problem.k // groups, taps, met
    )


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    return cpu_tiles.launches(_work(problem, config), config)


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    return cpu_tiles.cost(_work(problem, config), config, arch)


FAMILY = Family(
    name="cpu_conv2d",
    operator=(Conv2d, Gemm),
    kind=SHARED_LIBRARY,
    template="cpu/conv2d.cpp.j2",
    architectures=("cpu",),
    dtypes=("f32", "s8"),
    parameters=cpu_tiles.PARAMETERS,
    legal=cpu_tiles.legal,
    cost=_cost,
    context=lambda config, arch, dtype: {**config, "header": "cpu/conv2d.h", "pixels": "ForwardPixels"},
    launch_parameters=cpu_tiles.LAUNCH_PARAMETERS,
    launches=_launches,
    weight_layouts=lambda config: {"weight": f"k{config['block_k']}"},
)
