"""Gradient of a convolution by its weight from CUTLASS 2.x, fp16 and bf16 with float32 accumulation, NHWC.

The GEMM is M = k, N = r*s*c, K = n*p*q: few tiles with many steps, so how the steps are dealt decides.
"""

from __future__ import annotations

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.families import cutlass2_stream as stream
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter
from autotune.problem import Conv2dWgrad, Problem


def _tile(config: Config) -> stream.Tile:
    return stream.Tile.of(config, k_major=(False, False))


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return stream.unavailable(config, arch, dtype) or _tile(config).broken(arch)


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, Conv2dWgrad)
    if problem.groups != 1:
        return "groups"
    if problem.operands()[0].bytes >= 2**28:
        return "dy under 256 MiB: CUTLASS counts its bits in 32"
    return stream.too_large(problem)


def _work(problem: Problem, tile: stream.Tile) -> stream.Work:
    assert isinstance(problem, Conv2dWgrad)
    sizes = (problem.k, problem.r * problem.s * problem.c, problem.n * problem.p * problem.q)
    m, n, k = (stream.ceil_div(size, part) for size, part in zip(sizes, tile.shape, strict=True))
    return stream.Work(m, n, k)


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    assert isinstance(problem, Conv2dWgrad)
    if config["alignment"] != stream.widest(problem.k, problem.c):
        return []
    return stream.launches(_work(problem, _tile(config)), _tile(config), arch)


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    return stream.cost(_work(problem, _tile(config)), _tile(config), arch)


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    return {
        **stream.context(_tile(config), dtype),
        "header": "conv2d_wgrad.cuh",
        "work": "WgradWork",
        "cutlass_kernel": "DefaultConv2dWgrad",
        "cutlass_swizzle": "gemm::threadblock::GemmIdentityThreadblockSwizzle",
        "stride_support": "kStrided",
    }


FAMILY = Family(
    name="cutlass2_conv2d_wgrad",
    operator=Conv2dWgrad,
    kind=DEVICE_IMAGE,
    template="cutlass2/conv2d_gradient.cu.j2",
    architectures=stream.ARCHITECTURES,
    dtypes=("f16", "bf16"),
    parameters=(
        *stream.parameters("output channels", "taps and input channels", "output pixels"),
        Parameter("alignment", stream.ALIGNMENTS, "channels of an access: the most that c and k allow"),
    ),
    launch_parameters=stream.launch_parameters("output pixels"),
    legal=_legal,
    supports=_supports,
    launches=_launches,
    cost=_cost,
    context=_context,
    label=stream.label,
)
