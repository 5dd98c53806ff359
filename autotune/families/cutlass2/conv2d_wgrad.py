"""Weight gradient of a convolution from CUTLASS 2.x, fp16 and bf16 with float32 accumulation, NHWC.

The GEMM is M = k, N = r*s*c, K = n*p*q: few tiles with many steps, so their
distribution over blocks decides the time.
"""

from __future__ import annotations

from autotune.families.base import Parameter
from autotune.families.cutlass2 import streamk
from autotune.families.cutlass2.tile import ThreadblockTile, require_addressable
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import Conv2dWgrad


def _why_unsupported(problem: Conv2dWgrad) -> str | None:
    def rules() -> Rules:
        yield require(problem.groups == 1, "groups must be 1")
        size = problem.operands()[0].bytes
        yield require(size < 2**28, f"dy must be smaller than 256 MiB, as CUTLASS counts its bits in 32; it has {size}")
        yield require_addressable(problem)

    return first_unmet(rules())


def _decided(problem: Conv2dWgrad) -> dict[str, int]:
    return {"alignment": streamk.widest_access(problem.k, problem.c)}


def _work(problem: Conv2dWgrad, tile: ThreadblockTile) -> streamk.StreamKWork:
    sizes = (problem.k, problem.r * problem.s * problem.c, problem.n * problem.p * problem.q)
    return streamk.StreamKWork.of(sizes, tile)


FAMILY = streamk.family(
    "cutlass2_conv2d_wgrad",
    Conv2dWgrad,
    "cutlass2/conv2d_gradient.cu.j2",
    streamk.Product[Conv2dWgrad](
        k_major=(False, False),
        m="output channels",
        n="taps and input channels",
        k="output pixels",
        split="output pixels",
        work=_work,
        decided=_decided,
    ),
    own_parameters=(Parameter("alignment", streamk.ALIGNMENTS, "channels of an access: the most that c and k allow"),),
    why_unsupported=_why_unsupported,
    context=lambda _: {
        "header": "conv2d_wgrad.cuh",
        "work": "WgradWork",
        "cutlass_kernel": "DefaultConv2dWgrad",
        "cutlass_swizzle": "gemm::threadblock::GemmIdentityThreadblockSwizzle",
        "stride_support": "kStrided",
    },
)
