"""Gradient of a convolution by its weight from CUTLASS 2.x, fp16 and bf16 with float32 accumulation, NHWC.

The GEMM is M = k, N = r*s*c, K = n*p*q: few tiles with many steps, so how the steps are dealt decides.
"""

from __future__ import annotations

from autotune.families.base import Parameter
from autotune.families.cutlass2 import streamk as stream
from autotune.families.cutlass2 import tiling
from autotune.families.cutlass2.tiling import Tile
from autotune.ir import Conv2dWgrad, Problem


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, Conv2dWgrad)
    if problem.groups != 1:
        return "groups"
    if problem.operands()[0].bytes >= 2**28:
        return "dy under 256 MiB: CUTLASS counts its bits in 32"
    return tiling.too_large(problem)


def _decided(problem: Problem) -> dict[str, int]:
    assert isinstance(problem, Conv2dWgrad)
    return {"alignment": stream.widest(problem.k, problem.c)}


def _work(problem: Problem, tile: Tile) -> stream.Work:
    assert isinstance(problem, Conv2dWgrad)
    sizes = (problem.k, problem.r * problem.s * problem.c, problem.n * problem.p * problem.q)
    return stream.Work.of(sizes, tile)


FAMILY = stream.family(
    "cutlass2_conv2d_wgrad",
    Conv2dWgrad,
    "cutlass2/conv2d_gradient.cu.j2",
    stream.Product(
        k_major=(False, False),
        m="output channels",
        n="taps and input channels",
        k="output pixels",
        split="output pixels",
        work=_work,
        decided=_decided,
    ),
    (Parameter("alignment", stream.ALIGNMENTS, "channels of an access: the most that c and k allow"),),
    supports=_supports,
    context=lambda _: {
        "header": "conv2d_wgrad.cuh",
        "work": "WgradWork",
        "cutlass_kernel": "DefaultConv2dWgrad",
        "cutlass_swizzle": "gemm::threadblock::GemmIdentityThreadblockSwizzle",
        "stride_support": "kStrided",
    },
)
