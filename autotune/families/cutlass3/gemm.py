"""Matrix products from CUTLASS 3.x for Hopper: TMA, wgmma, persistent; also 1x1 convolutions, which are some."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core import Architecture, ceil_div
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.families.cutlass2.gemm import no_product, sizes
from autotune.families.cutlass3 import collective
from autotune.families.cutlass3.collective import Tile, Work
from autotune.ir import Conv2d, Epilogue, Gemm, Problem

_SWIZZLES, _SLICES = (0, 1, 2), (1, 2, 4, 8, 16)


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return collective.legal(Tile.of(config, dtype), arch, epilogue)


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    found = collective.values(parameter, chosen, dtype, problem.epilogue if problem else None)
    return collective.fitting(parameter, found, dtype, sizes(problem)) if problem else found


def _supports(problem: Problem) -> str | None:
    _, n, k = sizes(problem)
    return no_product(problem) or collective.misaligned(problem.dtype, n, k) or collective.too_large(problem)


def _work(problem: Problem, x: Tile) -> Work:
    return Work(*map(ceil_div, sizes(problem), (x.m, x.n, x.k)))


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    x = Tile.of(config, problem.dtype)
    return _work(problem, x).wasteful(x)


def _deals(problem: Problem, x: Tile, arch: Architecture) -> list[tuple[int, int]]:
    """(slices, stream): whole tiles; splits where these do not fill the machine; shares where they do not evenly."""
    work, room = _work(problem, x), x.clusters(arch)
    tiles = work.tiles(x)
    if x.schedule != "cooperative" or x.by_tma:
        return [(1, 0)]
    slices = [s for s in _SLICES if s == 1 or (s <= work.steps and tiles * s <= 2 * room)]
    stream = [(1, 1)] if work.steps > 1 and tiles % room and tiles * work.steps > room else []
    return [(s, 0) for s in slices] + stream


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    """The plainest first."""
    x = Tile.of(config, problem.dtype)
    columns = ceil_div(_work(problem, x).tiles_n, x.cluster_n)
    swizzles = [log for log in _SWIZZLES if log == 0 or (2**log <= columns and x.schedule != "basic")]
    deals = _deals(problem, x, arch)
    return [{"swizzle": log, "slices": slices, "stream": stream} for slices, stream in deals for log in swizzles]


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    x = Tile.of(config, problem.dtype)
    work = _work(problem, x)
    return min(collective.cost(work, x, arch, slices) for slices, _ in _deals(problem, x, arch))


FAMILY = Family(
    name="cutlass3_gemm",
    operator=(Gemm, Conv2d),
    kind=DEVICE_IMAGE,
    template="cutlass3/gemm.cu.j2",
    architectures=("sm90",),
    dtypes=tuple(collective.ELEMENTS),
    parameters=(
        Parameter(
            "schedule", tuple(collective.KERNEL_SCHEDULES), "one warpgroup, a tile a block; two, in turn; two at once"
        ),
        *collective.parameters("rows of x", "rows of the weight", "columns of both", (64, 128, 256)),
    ),
    launch_parameters=(
        Parameter("swizzle", _SWIZZLES, "log2 of how many tiles of N follow each other"),
        Parameter("slices", _SLICES, "split of the columns over blocks, summed in float32"),
        Parameter("stream", (0, 1), "1: the multiprocessors share the steps of all tiles equally"),
    ),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    context=collective.context,
    label=collective.label,
    weight_layouts=lambda _: {"weight": "kcrs"},
    compile_seconds=(7.0, 33.0),
    by_name=True,
)
