"""Input gradient of a convolution from CUTLASS 2.x, fp16 and bf16 with float32 accumulation, NHWC.

The GEMM is M = n*h*w, N = c, K = r*s*k; a step takes a chunk of k under all taps.
"""

from __future__ import annotations

from autotune.core import ceil_div
from autotune.families.base import Config, Parameter
from autotune.families.cutlass2 import streamk
from autotune.families.cutlass2.tile import ThreadblockTile, label, require_addressable
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import Conv2dDgrad


def _why_unsupported(problem: Conv2dDgrad) -> str | None:
    def rules() -> Rules:
        yield require(problem.groups == 1, "groups must be 1")
        yield require(problem.stride == (1, 1) or problem.dilation == (1, 1), "stride or dilation must be 1")
        yield require(max(problem.r, problem.s) <= 32, "filters must be at most 32x32")
        yield require_addressable(problem)

    return first_unmet(rules())


def _decided(problem: Conv2dDgrad) -> dict[str, int]:
    return {"alignment": streamk.widest_access(problem.k, problem.c), "strided": int(problem.stride != (1, 1))}


def _work(problem: Conv2dDgrad, tile: ThreadblockTile) -> streamk.StreamKWork:
    """Return the work: with a stride, pixels of each residue have their own tiles and only a share of the taps."""
    (m, n, k), (down, right) = tile.shape, problem.stride
    pixels = problem.n * ceil_div(problem.h, down) * ceil_div(problem.w, right)
    residues = down * right
    taps = problem.r * problem.s / residues
    return streamk.StreamKWork(
        tiles_m=residues * ceil_div(pixels, m),
        tiles_n=ceil_div(problem.c, n),
        steps=ceil_div(problem.k, k),
        iterations=taps,
    )


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


FAMILY = streamk.family(
    "cutlass2_conv2d_dgrad",
    Conv2dDgrad,
    "cutlass2/conv2d_gradient.cu.j2",
    streamk.Product[Conv2dDgrad](
        k_major=(True, False),
        m="input pixels",
        n="input channels",
        k="output channels",
        split="output channels",
        work=_work,
        decided=_decided,
    ),
    own_parameters=(
        Parameter("alignment", streamk.ALIGNMENTS, "channels of an access: the most that c and k allow"),
        Parameter("strided", (0, 1), "1: pixels sorted by their place modulo the stride; 0: for stride 1"),
    ),
    why_unsupported=_why_unsupported,
    context=_context,
    label=lambda config: label(config) + (" strided" if config["strided"] else ""),
    weight_layouts={"weight": "krsc"},
)
