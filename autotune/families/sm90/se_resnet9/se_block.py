"""A residual block with squeeze-and-excitation in one kernel for Hopper; fp16 and bf16 with float32 sums, NHWC.

A multiprocessor has whole images and both filters in its shared memory:
templates/sm90/se_resnet9/block/se_block.cuh says how it works.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.core import MOST_PROCESSORS, Architecture, ceil_div
from autotune.families import se_gate
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.ir import MAP_ELEMENTS, Epilogue, Problem, SeBlock

_CHANNELS = (32, 64)
PRODUCTS_A_CYCLE = 2048  # of a multiprocessor
LOADED_BYTES_A_CYCLE = 40  # by each multiprocessor, when all load


@dataclass(frozen=True)
class _Shape:
    """A config with its names spelt out."""

    m: int
    pixels: int  # of an image
    channels: int
    groups: int
    cluster: int

    @property
    def accumulators(self) -> int:
        """Registers of each thread that hold sums."""
        return self.m // self.groups // 64 * self.channels // 2

    @property
    def weight_bytes(self) -> int:
        """Shared memory of both filters."""
        return 2 * 9 * self.channels**2 * 2


def _shape(config: Config) -> _Shape:
    names = ("tile_m", "pixels", "channels", "groups", "cluster")
    return _Shape(*(int(config[name]) for name in names))


def _tiles(problem: SeBlock, x: _Shape) -> int:
    return ceil_div(problem.n * problem.h * problem.w, x.m)


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return next((why for broken, why in _rules(_shape(config), epilogue) if broken), None)


def _rules(x: _Shape, epilogue: Epilogue) -> Iterator[tuple[bool, str]]:
    yield epilogue.anchors != SeBlock.anchors, "an epilogue without the places of a block"
    yield from se_gate.legal(epilogue)
    yield x.m % x.pixels > 0, "a tile must be whole images"
    yield x.m % (64 * x.groups) > 0, "a warpgroup multiplies blocks of 64 rows"
    yield x.accumulators > 64, "sums and what is read early for them would spill"


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, SeBlock)
    return next((why for beyond, why in _limits(problem) if beyond), None)


def _limits(problem: SeBlock) -> Iterator[tuple[bool, str]]:
    yield problem.c not in _CHANNELS, f"c must be one of {', '.join(map(str, _CHANNELS))}: both filters stay on chip"
    pixels = problem.h * problem.w
    squares = problem.h % 8 == 0 and problem.w % 8 == 0
    yield not squares or 256 % pixels > 0, "images of 64, 128 or 256 pixels, in squares of 8 x 8"
    yield problem.hidden % 4 > 0 or problem.hidden > 64, "hidden must be a multiple of 4, at most 64"
    yield problem.n * pixels >= 2**31, "tensors of up to 2^31 pixels"


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    if isinstance(problem, SeBlock) and parameter.name == "channels":
        return (problem.c,)
    if isinstance(problem, SeBlock) and parameter.name == "pixels":
        return (problem.h * problem.w,)
    if isinstance(problem, SeBlock) and parameter.name == "tile_m":
        pixels = problem.h * problem.w
        return [m for m in parameter.values if int(m) % pixels == 0 and int(m) < 2 * pixels * problem.n]
    return parameter.values


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, SeBlock)
    x = _shape(config)
    if x.channels != problem.c:
        return f"it has {x.channels} channels"
    return f"its images have {x.pixels} pixels" if x.pixels != problem.h * problem.w else None


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    """A block for every tile, or as many blocks as there are multiprocessors, which load the filters once."""
    assert isinstance(problem, SeBlock)
    x = _shape(config)
    return launches_of(_tiles(problem, x), x.cluster, arch)


def launches_of(tiles: int, cluster: int, arch: Architecture) -> list[Launch]:
    """Of kernels that have both filters in shared memory; none where a cluster has more blocks than there are tiles."""
    if tiles < cluster:
        return []
    room = arch.processors_for(cluster)
    grids = (0,) if tiles <= room else (room, 0)
    return [{"grid": grid, "early_taps": taps} for grid in grids for taps in (9, 0, 18)]


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: the filters' loads, then rounds of tiles."""
    assert isinstance(problem, SeBlock)
    x = _shape(config)
    rounds = ceil_div(_tiles(problem, x), arch.processors_for(x.cluster))
    arithmetic = 2 * 9 * x.m * x.channels**2 / PRODUCTS_A_CYCLE
    latency = 4000 / x.groups
    return x.weight_bytes / 2 / x.cluster / LOADED_BYTES_A_CYCLE + rounds * (arithmetic + latency)


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    return {
        **config,
        "type": dtype,
        "map_element": MAP_ELEMENTS[dtype],
        "image": 0,  # no stem
    }


def _label(config: Config) -> str:
    shared = f" c{config['cluster']}" if config["cluster"] != 1 else ""
    return f"{config['tile_m']}x{config['channels']} {config['groups']}wg{shared}"


FAMILY = Family(
    name="sm90_se_block",
    operator=SeBlock,
    kind=DEVICE_IMAGE,
    template="sm90/se_resnet9/block/se_block.cu.j2",
    architectures=("sm90",),
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("tile_m", (64, 128, 256), "pixels of a tile, which is whole images"),
        Parameter("pixels", (64, 128, 256), "pixels of an image"),
        Parameter("channels", _CHANNELS, "channels, in and out"),
        Parameter("groups", (1, 2, 4), "warpgroups that multiply"),
        Parameter("cluster", (1, 2, 4), "blocks that share their loads of the filters"),
    ),
    launch_parameters=(
        Parameter("grid", tuple(range(MOST_PROCESSORS + 1)), "most blocks: 0 gives each tile a block of its own"),
        Parameter("early_taps", (0, 9, 18), "taps of the filters that are loaded before the image, of 18"),
    ),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    context=_context,
    label=_label,
    weight_layouts=lambda _: {"weight1": "wgmma", "weight2": "wgmma"},
    compile_seconds=(1.0, 1.2),
)
