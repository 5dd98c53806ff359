"""Matrix products from CUTLASS 2.x, and the 1x1 convolutions that are some; fp16 and bf16, float32 accumulation."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.families.base import Config, Parameter, Rules, Value, require
from autotune.families.cutlass2.streamk import (
    ALIGNMENTS,
    StreamKFamily,
    StreamKWork,
    product_parameters,
    split_parameters,
    widest_access,
)
from autotune.families.cutlass2.tile import ThreadblockTile, require_addressable
from autotune.ir.operators import Conv2d, Gemm


def gemm_sizes(problem: Conv2d | Gemm) -> tuple[int, int, int]:
    """Return (m, n, k) of a product or of a 1x1 convolution as one."""
    conv = problem.as_conv2d if isinstance(problem, Gemm) else problem
    return conv.n * conv.h * conv.w, conv.k, conv.c


def require_product(problem: Conv2d | Gemm) -> str | None:
    """Require that a convolution is a matrix product."""
    is_product = isinstance(problem, Gemm) or problem.is_product
    return require(is_product, "convolutions must be 1x1 with stride 1, no padding and groups=1")


class Cutlass2Gemm(StreamKFamily[Conv2d | Gemm]):
    """Rows of x times rows of the weight."""

    name = "cutlass2_gemm"
    operator = (Gemm, Conv2d)
    template = "cutlass2/gemm.cu.j2"
    k_major = (True, True)
    parameters = product_parameters(
        "rows of x",
        "rows of the weight",
        "columns of both",
        Parameter("alignment", ALIGNMENTS, "elements of an access to x and the weight: the most that k allows"),
        Parameter("vector", ALIGNMENTS, "elements of an access to the output: the most that n allows"),
    )
    launch_parameters = split_parameters("columns")

    def unsupported(self, problem: Conv2d | Gemm) -> Rules:
        yield require_product(problem)
        yield require_addressable(problem)

    def decided(self, problem: Conv2d | Gemm) -> Mapping[str, Value]:
        _, n, k = gemm_sizes(problem)
        return {"alignment": widest_access(k), "vector": widest_access(n)}

    def work(self, problem: Conv2d | Gemm, tile: ThreadblockTile) -> StreamKWork:
        return StreamKWork.of(gemm_sizes(problem), tile)

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "kcrs"}


FAMILIES = (Cutlass2Gemm(),)
