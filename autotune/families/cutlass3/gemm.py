"""Matrix products from CUTLASS 3.x for Hopper, and the 1x1 convolutions that are some: TMA, wgmma, persistent."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core import Architecture, ceil_div
from autotune.families.base import DEVICE_IMAGE, Config, Launch, Parameter, Value
from autotune.families.base import RecordFamily as Family
from autotune.families.cutlass2.gemm import gemm_sizes, require_product
from autotune.families.cutlass3 import collective
from autotune.families.cutlass3.collective import CollectiveTile, TileGrid
from autotune.ir import Conv2d, Epilogue, Gemm

_SWIZZLES, _SLICES = (0, 1, 2), (1, 2, 4, 8, 16)


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return collective.why_illegal(CollectiveTile.from_config(config, dtype), arch, epilogue)


def _candidate_values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Conv2d | Gemm | None
) -> Sequence[Value]:
    found = collective.candidate_values(parameter, chosen, dtype, problem.epilogue if problem else None)
    return collective.fitting_values(parameter, found, dtype, gemm_sizes(problem)) if problem else found


def _why_unsupported(problem: Conv2d | Gemm) -> str | None:
    _, n, k = gemm_sizes(problem)
    return (
        require_product(problem)
        or collective.require_aligned(problem.dtype, n, k)
        or collective.require_countable(problem)
    )


def _grid(problem: Conv2d | Gemm, tile: CollectiveTile) -> TileGrid:
    m, n, k = gemm_sizes(problem)
    return TileGrid(tiles_m=ceil_div(m, tile.m), tiles_n=ceil_div(n, tile.n), steps=ceil_div(k, tile.k))


def _why_unfit(problem: Conv2d | Gemm, config: Config, arch: Architecture) -> str | None:
    tile = CollectiveTile.from_config(config, problem.dtype)
    return _grid(problem, tile).require_full_cluster(tile)


def _distributions(problem: Conv2d | Gemm, tile: CollectiveTile, arch: Architecture) -> list[tuple[int, int]]:
    """Return the (slices, stream) worth trying.

    Splits are tried if the tiles do not fill the machine twice, Stream-K if they are no multiple of its clusters.
    """
    grid, room = _grid(problem, tile), tile.clusters(arch)
    clusters = grid.clusters(tile)
    if tile.schedule != "cooperative" or tile.by_tma:
        return [(1, 0)]
    slices = [s for s in _SLICES if s == 1 or (s <= grid.steps and clusters * s <= 2 * room)]
    stream = [(1, 1)] if grid.steps > 1 and clusters % room and clusters * grid.steps > room else []
    return [(s, 0) for s in slices] + stream


def _launches(problem: Conv2d | Gemm, config: Config, arch: Architecture) -> list[Launch]:
    tile = CollectiveTile.from_config(config, problem.dtype)
    columns = ceil_div(_grid(problem, tile).tiles_n, tile.cluster_n)
    swizzles = [log for log in _SWIZZLES if log == 0 or (2**log <= columns and tile.schedule != "basic")]
    distributions = _distributions(problem, tile, arch)
    return [
        {"swizzle": log, "slices": slices, "stream": stream} for slices, stream in distributions for log in swizzles
    ]


def _cost(problem: Conv2d | Gemm, config: Config, arch: Architecture) -> float:
    tile = CollectiveTile.from_config(config, problem.dtype)
    grid = _grid(problem, tile)
    return min(collective.cost(grid, tile, arch, slices) for slices, _ in _distributions(problem, tile, arch))


FAMILY = Family[Conv2d | Gemm](
    name="cutlass3_gemm",
    operator=(Gemm, Conv2d),
    kind=DEVICE_IMAGE,
    template="cutlass3/gemm.cu.j2",
    architectures=("sm90",),
    dtypes=tuple(collective.ELEMENTS),
    parameters=(
        Parameter(
            "schedule",
            tuple(collective.KERNEL_SCHEDULES),
            "warpgroups that multiply: one, a block ends with its tile; two, a tile each in turn; two on one tile",
        ),
        *collective.parameters("rows of x", "rows of the weight", "columns of both", (64, 128, 256)),
    ),
    launch_parameters=(
        Parameter("swizzle", _SWIZZLES, "log2 of how many tiles of N follow each other"),
        Parameter("slices", _SLICES, "split of the columns over blocks, summed in float32"),
        Parameter("stream", (0, 1), "1: the SMs share the steps of all tiles equally"),
    ),
    why_illegal=_why_illegal,
    candidate_values=_candidate_values,
    why_unsupported=_why_unsupported,
    why_unfit=_why_unfit,
    launches=_launches,
    cost=_cost,
    context=collective.context,
    label=collective.label,
    weight_layouts=lambda _: {"weight": "kcrs"},
    compile_seconds=(7.0, 33.0),
    opt_in=True,
)
