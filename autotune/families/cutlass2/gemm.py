"""Matrix products from CUTLASS 2.x, and the 1x1 convolutions that are some; fp16 and bf16, float32 accumulation."""

from __future__ import annotations

from autotune.families.base import Parameter
from autotune.families.cutlass2 import streamk
from autotune.families.cutlass2.tile import ThreadblockTile, require_addressable
from autotune.families.rules import require
from autotune.ir import Conv2d, Gemm


def gemm_sizes(problem: Conv2d | Gemm) -> tuple[int, int, int]:
    """Return (m, n, k) of a product or of a 1x1 convolution as one."""
    conv = problem.as_conv2d if isinstance(problem, Gemm) else problem
    return conv.n * conv.h * conv.w, conv.k, conv.c


def require_product(problem: Conv2d | Gemm) -> str | None:
    """Require that a convolution is a matrix product."""
    is_product = isinstance(problem, Gemm) or (problem.is_pointwise and problem.groups == 1)
    return require(is_product, "convolutions must be 1x1 with stride 1, no padding and groups=1")


def _decided(problem: Conv2d | Gemm) -> dict[str, int]:
    _, n, k = gemm_sizes(problem)
    return {"alignment": streamk.widest_access(k), "vector": streamk.widest_access(n)}


def _work(problem: Conv2d | Gemm, tile: ThreadblockTile) -> streamk.StreamKWork:
    return streamk.StreamKWork.of(gemm_sizes(problem), tile)


def _why_unsupported(problem: Conv2d | Gemm) -> str | None:
    return require_product(problem) or require_addressable(problem)


FAMILY = streamk.family(
    "cutlass2_gemm",
    (Gemm, Conv2d),
    "cutlass2/gemm.cu.j2",
    streamk.Product[Conv2d | Gemm](
        k_major=(True, True),
        m="rows of x",
        n="rows of the weight",
        k="columns of both",
        split="columns",
        work=_work,
        decided=_decided,
    ),
    own_parameters=(
        Parameter("alignment", streamk.ALIGNMENTS, "elements of an access to x and the weight: the most that k allows"),
        Parameter("vector", streamk.ALIGNMENTS, "elements of an access to the output: the most that n allows"),
    ),
    why_unsupported=_why_unsupported,
    weight_layouts={"weight": "kcrs"},
)
