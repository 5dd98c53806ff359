"""The families of a convolution's three passes from CUTLASS 3.x for Hopper, which share a template.

CUTLASS's implicit GEMM for Hopper has one schedule: a warpgroup loads, another multiplies, a block ends with its tile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from autotune.core import Architecture, ceil_div
from autotune.families.base import DEVICE_IMAGE, Config, Parameter, Value
from autotune.families.base import RecordFamily as Family
from autotune.families.cutlass3 import collective
from autotune.families.cutlass3.collective import CollectiveTile, TileGrid
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import Convolution, Epilogue

P = TypeVar("P", bound=Convolution)

# Limits of TMA's im2col mode for tensors of rank 4: CUDA Driver API, cuTensorMapEncodeIm2col.
_MIN_CORNER, _MAX_CORNER = -128, 127  # of the box of starting pixels
_MAX_OFFSET = 254  # of a tap
_MAX_STRIDE = 8
_MAX_ROW_BYTES = 128  # a longer row of the im2col matrix is loaded eight pixels at a time

GemmSizes = tuple[int, int, int, int]
"""(m, n, k, taps) of a problem's GEMM. The taps multiply k or, in the weight gradient, n."""


def family(
    name: str,
    operator: type[P],
    *,
    pass_: str,
    meanings: tuple[str, str, str],
    gemm_sizes: Callable[[P], GemmSizes],
    dtypes: tuple[str, ...],
    weight_layouts: Mapping[str, str],
) -> Family[P]:
    """Return the family of one pass.

    Args:
        name: The family's name.
        operator: The problems that it solves.
        pass_: CUTLASS's name of the pass: "kFprop", "kDgrad" or "kWgrad".
        meanings: The meanings of m, n and k.
        gemm_sizes: (problem) -> the sizes of its GEMM.
        dtypes: The dtypes that it has kernels for.
        weight_layouts: The layouts of weights, for all configs.
    """
    by_weight = pass_ == "kWgrad"
    m, n, k = meanings

    def grid(problem: P, tile: CollectiveTile) -> TileGrid:
        rows, columns, depth, taps = gemm_sizes(problem)
        return TileGrid(
            tiles_m=ceil_div(rows, tile.m),
            tiles_n=ceil_div(columns, tile.n) * (taps if by_weight else 1),
            steps=ceil_div(depth, tile.k) * (1 if by_weight else taps),
        )

    def why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
        tile = CollectiveTile.from_config(config, dtype)
        return require(
            by_weight or tile.k * tile.bytes <= _MAX_ROW_BYTES,
            f"tile_k must be at most {_MAX_ROW_BYTES} bytes: TMA loads longer rows in pieces",
        ) or collective.why_illegal(tile, arch, epilogue)

    def candidate_values(
        parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: P | None
    ) -> Sequence[Value]:
        found = collective.candidate_values(parameter, chosen, dtype, problem.epilogue if problem else None)
        return collective.fitting_values(parameter, found, dtype, gemm_sizes(problem)[:3]) if problem else found

    def why_unsupported(problem: P) -> str | None:
        return (
            first_unmet(_problem_rules(problem, strided=pass_ != "kDgrad"))
            or collective.require_aligned(problem.dtype, problem.c, problem.k)
            or collective.require_countable(problem)
        )

    def why_unfit(problem: P, config: Config, arch: Architecture) -> str | None:
        tile = CollectiveTile.from_config(config, problem.dtype)
        return grid(problem, tile).require_full_cluster(tile)

    def cost(problem: P, config: Config, arch: Architecture) -> float:
        tile = CollectiveTile.from_config(config, problem.dtype)
        return collective.cost(grid(problem, tile), tile, arch)

    return Family[P](
        name=name,
        operator=operator,
        kind=DEVICE_IMAGE,
        template="cutlass3/conv2d.cu.j2",
        architectures=("sm90",),
        dtypes=dtypes,
        parameters=collective.parameters(m=m, n=n, k=k, tiles_m=(64, 128, 192, 256)),
        why_illegal=why_illegal,
        candidate_values=candidate_values,
        why_unsupported=why_unsupported,
        why_unfit=why_unfit,
        cost=cost,
        context=lambda config, arch, dtype: {**collective.context(config, arch, dtype), "pass": pass_},
        label=collective.label,
        weight_layouts=lambda _: weight_layouts,
        compile_seconds=(7.0, 33.0),
        opt_in=True,
    )


def _problem_rules(problem: Convolution, strided: bool) -> Rules:
    yield require(problem.groups == 1, "groups must be 1")
    yield require(strided or problem.stride == (1, 1), "stride must be 1")
    yield require(max(problem.stride) <= _MAX_STRIDE, f"stride must be at most {_MAX_STRIDE}")
    for pad, dilation, extent in zip(problem.pad, problem.dilation, (problem.r, problem.s), strict=True):
        reach = dilation * (extent - 1)
        corners = (-pad, pad - reach)
        yield require(
            reach <= _MAX_OFFSET and min(corners) >= _MIN_CORNER and max(corners) <= _MAX_CORNER,
            f"a filter must reach at most {_MAX_OFFSET} pixels, {_MAX_CORNER} beyond the padding, as TMA's im2col does",
        )
