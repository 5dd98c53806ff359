"""Gradient of a convolution by its input from CUTLASS 2.x, fp16 and bf16 with float32 accumulation, NHWC.

The GEMM is M = n*h*w, N = c, K = r*s*k; a step takes a chunk of k under all taps.
"""

from __future__ import annotations

from autotune.core import ceil_div
from autotune.families.base import Config, Parameter
from autotune.families.cutlass2 import streamk as stream
from autotune.families.cutlass2 import tiling
from autotune.families.cutlass2.tiling import Tile
from autotune.ir import Conv2dDgrad, Problem


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, Conv2dDgrad)
    if problem.groups != 1:
        return "groups"
    if problem.stride != (1, 1) and problem.dilation != (1, 1):
        return "a stride and a dilation at once"
    if max(problem.r, problem.s) > 32:
        return "filters up to 32x32"
    return tiling.too_large(problem)


def _decided(problem: Problem) -> dict[str, int]:
    assert isinstance(problem, Conv2dDgrad)
    return {"alignment": stream.widest(problem.k, problem.c), "strided": int(problem.stride != (1, 1))}


def _work(problem: Problem, tile: Tile) -> stream.Work:
    """With a stride, each residue of pixels has its own tiles, and meets only its share of the taps."""
    assert isinstance(problem, Conv2dDgrad)
    (m, n, k), (down, right) = tile.shape, problem.stride
    pixels = problem.n * ceil_div(problem.h, down) * ceil_div(problem.w, right)
    residues = down * right
    taps = problem.r * problem.s / residues
    return stream.Work(residues * ceil_div(pixels, m), ceil_div(problem.c, n), ceil_div(problem.k, k), taps)


def _context(config: Config) -> dict[str, object]:
    strided = config["strided"] == 1
    return {
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


FAMILY = stream.family(
    "cutlass2_conv2d_dgrad",
    Conv2dDgrad,
    "cutlass2/conv2d_gradient.cu.j2",
    stream.Product(
        k_major=(True, False),
        m="input pixels",
        n="input channels",
        k="output channels",
        split="output channels",
        work=_work,
        decided=_decided,
    ),
    (
        Parameter("alignment", stream.ALIGNMENTS, "channels of an access: the most that c and k allow"),
        Parameter("strided", (0, 1), "1: pixels sorted by their place modulo the stride; 0: for stride 1"),
    ),
    supports=_supports,
    context=_context,
    label=lambda config: tiling.label(config) + (" strided" if config["strided"] else ""),
    weight_layouts={"weight": "krsc"},
)
