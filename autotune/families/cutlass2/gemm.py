"""Matrix products from CUTLASS 2.x, fp16 and bf16 with float32 accumulation; also 1x1 convolutions, which are some."""

from __future__ import annotations

from autotune.families.base import Parameter
from autotune.families.cutlass2 import streamk as stream
from autotune.families.cutlass2 import tiling
from autotune.families.cutlass2.tiling import Tile
from autotune.ir import Conv2d, Gemm, Problem


def sizes(problem: Problem) -> tuple[int, int, int]:
    """(m, n, k)."""
    conv = problem.as_conv2d if isinstance(problem, Gemm) else problem
    assert isinstance(conv, Conv2d)
    return conv.n * conv.h * conv.w, conv.k, conv.c


def _decided(problem: Problem) -> dict[str, int]:
    _, n, k = sizes(problem)
    return {"alignment": stream.widest(k), "vector": stream.widest(n)}


def _work(problem: Problem, tile: Tile) -> stream.Work:
    return stream.Work.of(sizes(problem), tile)


def no_product(problem: Problem) -> str | None:
    """Which convolutions are matrix products, if this is none."""
    if isinstance(problem, Conv2d):
        plain = problem.is_pointwise and problem.groups == 1
        if not plain:
            return "convolutions 1x1 with stride 1, no padding and no groups"
    return None


FAMILY = stream.family(
    "cutlass2_gemm",
    (Gemm, Conv2d),
    "cutlass2/gemm.cu.j2",
    stream.Product(
        k_major=(True, True),
        m="rows of x",
        n="rows of the weight",
        k="columns of both",
        split="columns",
        work=_work,
        decided=_decided,
    ),
    (
        Parameter("alignment", stream.ALIGNMENTS, "elements of an access to x and the weight: the most that k allows"),
        Parameter("vector", stream.ALIGNMENTS, "elements of an access to the output: the most that n allows"),
    ),
    supports=lambda problem: no_product(problem) or tiling.too_large(problem),
    weight_layouts={"weight": "kcrs"},
)
