"""Gradient of a convolution by its input from CUTLASS 2.x, fp16 and bf16 with float32 accumulation, NHWC.

The GEMM is M = n*h*w, N = c, K = r*s*k; a step takes a chunk of k under all taps.
"""

from __future__ import annotations

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.families import cutlass2_stream as stream
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter
from autotune.problem import Conv2dDgrad, Problem


def _tile(config: Config) -> stream.Tile:
    return stream.Tile.of(config, k_major=(True, False))


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return stream.unavailable(config, arch, dtype) or _tile(config).broken(arch)


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, Conv2dDgrad)
    if problem.groups != 1:
        return "groups"
    if problem.stride != (1, 1) and problem.dilation != (1, 1):
        return "a stride and a dilation at once"
    if max(problem.r, problem.s) > 32:
        return "filters up to 32x32"
    return stream.too_large(problem)


def _work(problem: Problem, tile: stream.Tile) -> stream.Work:
    """With a stride, each residue of pixels has its own tiles, and meets only its share of the taps."""
    assert isinstance(problem, Conv2dDgrad)
    (m, n, k), (down, right) = tile.shape, problem.stride
    pixels = problem.n * stream.ceil_div(problem.h, down) * stream.ceil_div(problem.w, right)
    residues = down * right
    taps = problem.r * problem.s / residues
    return stream.Work(
        residues * stream.ceil_div(pixels, m), stream.ceil_div(problem.c, n), stream.ceil_div(problem.k, k), taps
    )


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    assert isinstance(problem, Conv2dDgrad)
    strided = int(problem.stride != (1, 1))
    if (config["strided"], config["alignment"]) != (strided, stream.widest(problem.k, problem.c)):
        return []
    return stream.launches(_work(problem, _tile(config)), _tile(config), arch)


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    return stream.cost(_work(problem, _tile(config)), _tile(config), arch)


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    strided = config["strided"] == 1
    return {
        **stream.context(_tile(config), dtype),
        "header": "conv2d_dgrad.cuh",
        "work": "DgradWork",
        "cutlass_kernel": "DefaultConv2dDgrad",
        "cutlass_swizzle": (
            "conv::threadblock::StridedDgradIdentityThreadblockSwizzle"
            if strided
            else "gemm::threadblock::GemmIdentityThreadblockSwizzle"
        ),
        "stride_support": "kStrided" if strided else "kUnity",
    }


FAMILY = Family(
    name="cutlass2_conv2d_dgrad",
    operator=Conv2dDgrad,
    kind=DEVICE_IMAGE,
    template="cutlass2/conv2d_gradient.cu.j2",
    architectures=stream.ARCHITECTURES,
    dtypes=("f16", "bf16"),
    parameters=(
        *stream.parameters("input pixels", "input channels", "output channels"),
        Parameter("alignment", stream.ALIGNMENTS, "channels of an access: the most that c and k allow"),
        Parameter("strided", (0, 1), "1: pixels sorted by their place modulo the stride; 0: for stride 1"),
    ),
    launch_parameters=stream.launch_parameters("output channels"),
    legal=_legal,
    supports=_supports,
    launches=_launches,
    cost=_cost,
    context=_context,
    label=lambda config: stream.label(config) + (" strided" if config["strided"] else ""),
    weight_layouts=lambda _: {"weight": "krsc"},
)
