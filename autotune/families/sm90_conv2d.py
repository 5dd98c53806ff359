"""Forward convolution for Hopper: persistent, warp-specialised, TMA and wgmma; fp16 and bf16 with float32 sums, NHWC.

The GEMM is M = n*p*q, N = k, K = r*s*c. See templates/sm90/conv2d.cuh for how it works.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter
from autotune.problem import Conv2d, Problem

_MAP_ELEMENTS = {"f16": 6, "bf16": 9}  # CUtensorMapDataType
_IM2COL, _PATCH = 0, 1
_RESIDENT = 0  # slots of weights: as many as a tile has products
_MOST_SHARED = 232448 - 1024 - 32  # the buffers must begin at a multiple of 1024; some barriers
_REGISTERS = 65536
_SLOT_OVERHEAD = 16  # bytes of barriers
_MOST_CORNER, _MOST_OFFSET, _MOST_BOX = 128, 255, 256  # of TMA: corners and offsets of im2col, extents of a box

# For the cost: a multiprocessor's rates a cycle.
_PRODUCTS_A_CYCLE = 2048
_L2_BYTES_A_CYCLE = 48


@dataclass(frozen=True)
class _Shape:
    """A config with its names spelt out."""

    m: int
    n: int
    k: int
    groups: int
    pingpong: bool
    cluster_m: int
    cluster_n: int
    slices: int

    @property
    def threads(self) -> int:
        return 128 * self.groups + 64

    @property
    def team(self) -> int:
        return 1 if self.pingpong else self.groups

    @property
    def accumulators(self) -> int:
        """Registers of each thread that hold sums."""
        return self.m // self.team // 64 * self.n // 2

    @property
    def blocks_by_registers(self) -> int:
        """Blocks whose registers fit a multiprocessor."""
        return max(1, min(4, _REGISTERS // (self.threads * (self.accumulators + 64))))

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n * self.slices

    @property
    def weight_bytes(self) -> int:
        return self.n * self.k * 2


def _shape(config: Config) -> _Shape:
    return _Shape(
        *(int(config[f"tile_{axis}"]) for axis in "mnk"),
        int(config["groups"]),
        config["schedule"] == "pingpong",
        int(config["cluster_m"]),
        int(config["cluster_n"]),
        int(config["slices"]),
    )


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return next((why for broken, why in _rules(_shape(config)) if broken), None)


def _rules(x: _Shape) -> Iterator[tuple[bool, str]]:
    yield x.pingpong and (x.groups != 2 or x.slices > 1), "ping-pong takes two warpgroups, each with a tile of its own"
    yield x.m % (64 * x.team) > 0, "a warpgroup multiplies blocks of 64 rows"
    yield x.accumulators > 128, "the accumulators would spill"
    yield x.groups == 3 and x.accumulators > 96, "three warpgroups: the accumulators would spill"
    yield x.m // x.team > 128 and x.n > 128, "the accumulators would spill"
    yield x.cluster > 8, "clusters of up to eight blocks"
    yield x.slices > 1 and x.cluster > x.slices and x.cluster > 4, "a split tile leaves little to share"
    yield (x.m // x.team // 64 * 2 * (x.n // 32)) % x.slices > 0, "the split must divide the tile"
    yield x.k < 64 and (x.n > 128 or x.m > 128), "narrow steps are for few channels"
    yield 2 * (x.m + x.n) * x.k * 2 > _MOST_SHARED, "shared memory"


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, Conv2d)
    if problem.groups != 1:
        return "groups"
    if problem.c % 8 or problem.k % 8:
        return "c and k must be multiples of 8"
    reach = [d * (extent - 1) for d, extent in zip(problem.dilation, (problem.r, problem.s), strict=True)]
    if max(reach) > _MOST_OFFSET or max(problem.pad) > _MOST_CORNER or max(reach) - min(problem.pad) > _MOST_CORNER:
        return "filters that reach further than TMA can"
    if max(problem.stride) > 8:
        return "strides up to 8"
    if problem.n * problem.p * problem.q >= 2**31:
        return "tensors of up to 2^31 pixels"
    return None


def _is_pointwise(problem: Conv2d) -> bool:
    return (problem.r, problem.s, problem.stride, problem.pad) == (1, 1, (1, 1), (0, 0))


@dataclass(frozen=True)
class _Loading:
    """How a tile's activations come: bytes of a fill, fills a tile, tiles of M, and the share of them that counts."""

    mode: int
    squares: tuple[int, int, int]
    fill_bytes: int
    fills: int
    tiles_m: int


def _im2col(problem: Conv2d, x: _Shape) -> _Loading:
    fills = problem.r * problem.s * -(-problem.c // x.k)
    return _Loading(_IM2COL, (0, 0, 0), x.m * x.k * 2, fills, -(-problem.n * problem.p * problem.q // x.m))


def _patches(problem: Conv2d, x: _Shape) -> list[_Loading]:
    """The arrangements of 8 x 8 squares worth trying, the best first."""
    if _is_pointwise(problem) or x.cluster_n > 1:
        return []
    if any(stride > 1 and dilation > 1 for stride, dilation in zip(problem.stride, problem.dilation, strict=True)):
        return []
    blocks, found = x.m // 64, []
    phases = min(problem.r, problem.stride[0]) * min(problem.s, problem.stride[1])
    for h in range(1, blocks + 1):
        for w in range(1, blocks // h + 1):
            if blocks % (h * w):
                continue
            images = blocks // (h * w)
            halo_h, halo_w = (
                (extent - 1) // stride * dilation
                for extent, stride, dilation in zip((problem.r, problem.s), problem.stride, problem.dilation, strict=True)
            )
            patch_h, patch_w = 8 * h + halo_h, 8 * w + halo_w
            fill = images * patch_h * patch_w * x.k * 2
            if max((patch_h - 1) * problem.stride[0], (patch_w - 1) * problem.stride[1]) >= _MOST_BOX - 1:
                continue
            tiles = -(-problem.n // images) * -(-problem.p // (8 * h)) * -(-problem.q // (8 * w))
            fills = phases * -(-problem.c // x.k)
            if tiles * x.m <= 1.5 * problem.n * problem.p * problem.q:
                found.append(_Loading(_PATCH, (h, w, images), fill, fills, tiles))
    return sorted(found, key=lambda one: (one.tiles_m, one.fill_bytes))[:2]


def _round(size: int) -> int:
    return -(-size // 1024) * 1024


def _slots(problem: Conv2d, x: _Shape, loading: _Loading, room: int) -> list[tuple[int, int]]:
    """(activation slots, weight slots) that fill `room` bytes of shared memory: weights streamed, then resident."""
    fill, weight = _round(loading.fill_bytes) + _SLOT_OVERHEAD, x.weight_bytes + _SLOT_OVERHEAD
    products = problem.r * problem.s * -(-problem.c // x.k)
    found = []
    if loading.mode == _IM2COL:
        streamed = min(room // (fill + weight), 12)
        if streamed >= 2:
            found.append((streamed, streamed))
    else:
        fills = 2 if room - 2 * fill >= 3 * weight else 1
        weights = min((room - fills * fill) // weight, 12)
        if weights >= 3 and products > weights:
            found.append((fills, weights))
    left = room - products * weight
    if products <= 24 and left >= fill * (1 if loading.mode == _PATCH else 2):
        found.append((min(left // fill, 8), _RESIDENT))
    return found


def _gathers(x: _Shape, loading: _Loading, slots: tuple[int, int], products: int) -> bool:
    """Whether the sums of a split tile fit the buffers."""
    room = slots[0] * _round(loading.fill_bytes) + (slots[1] or products) * x.weight_bytes
    return x.slices == 1 or x.m * x.n * 4 <= room


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    assert isinstance(problem, Conv2d)
    x = _shape(config)
    tiles_n = -(-problem.k // x.n)
    products = problem.r * problem.s * -(-problem.c // x.k)
    if x.k < 64 and x.k >= 2 * problem.c or x.k == 64 and problem.c <= 32 or x.k == 16 and problem.c > 64:
        return []
    if x.n >= 2 * -(-problem.k // 32) * 32 or tiles_n < x.cluster_n:
        return []
    result: list[Launch] = []
    for loading in (_im2col(problem, x), *_patches(problem, x)):
        tiles = -(-loading.tiles_m // x.cluster_m) * -(-tiles_n // x.cluster_n)
        if loading.tiles_m < x.cluster_m or x.slices > loading.fills or tiles * x.cluster > 2 * arch.processors * (
            4 if x.slices == 1 else 1
        ) and x.slices > 1:
            continue
        for resident in range(1, x.blocks_by_registers + 1):
            room = arch.sm_shared // resident - arch.reserved_shared - 1056
            blocks = tiles * x.cluster
            if resident > 1 and blocks <= arch.processors * (resident - 1):
                continue
            for slots in _slots(problem, x, loading, min(room, _MOST_SHARED)):
                if not _gathers(x, loading, slots, products):
                    continue
                limits = [0] if blocks <= arch.processors * resident or x.slices > 1 else [arch.processors * resident]
                if limits[0] and slots[1] != _RESIDENT:
                    limits.append(0)
                rasters = (0, 1) if tiles_n > x.cluster_n and slots[1] != _RESIDENT else (0,)
                result += [
                    _launch(loading, slots, limit, raster)
                    for limit in limits
                    for raster in (rasters if limit == limits[0] else (0,))
                ]
    return result


def _launch(loading: _Loading, slots: tuple[int, int], limit: int, raster: int) -> Launch:
    h, w, images = loading.squares
    names = [parameter.name for parameter in _LAUNCH_PARAMETERS]
    return dict(zip(names, (loading.mode, *slots, limit, raster, h, w, images), strict=True))


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: rounds of tiles, each bound by products or by loads, and its latencies."""
    assert isinstance(problem, Conv2d)
    x = _shape(config)
    tiles_n = -(-problem.k // x.n)
    products = problem.r * problem.s * -(-problem.c // x.k)
    best = float("inf")
    for loading in (_im2col(problem, x), *_patches(problem, x)):
        blocks = -(-loading.tiles_m // x.cluster_m) * -(-tiles_n // x.cluster_n) * x.cluster
        rounds = -(-blocks // arch.processors)
        arithmetic = products * x.m * max(x.n, 96) * x.k / _PRODUCTS_A_CYCLE / x.slices
        activations = loading.fills * loading.fill_bytes / x.cluster_n
        weights = products * x.weight_bytes / x.cluster_m
        resident = weights + 2 * loading.fill_bytes <= _MOST_SHARED and rounds > 1
        loads = (activations + (weights / rounds if resident else weights)) / x.slices / _L2_BYTES_A_CYCLE
        epilogue = x.m * x.n * 2 / 24 * (0.5 if x.pingpong or x.blocks_by_registers > 1 else 1)
        split = 1500 if x.slices > 1 else 0
        best = min(best, rounds * (max(arithmetic, loads) + epilogue) + split + 1500)
    return best


def _label(config: Config) -> str:
    x = _shape(config)
    extras = [
        f" {x.groups}wg" if not x.pingpong else " pingpong",
        f" c{x.cluster_m}x{x.cluster_n}" if x.cluster_m * x.cluster_n > 1 else "",
        f" split{x.slices}" if x.slices > 1 else "",
    ]
    return f"{x.m}x{x.n}x{x.k}{''.join(extras)}"


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    x = _shape(config)
    return {
        **config,
        "type": dtype,
        "map_element": _MAP_ELEMENTS[dtype],
        "threads": x.threads,
        "resident_blocks": x.blocks_by_registers,
    }


_LAUNCH_PARAMETERS = (
    Parameter("mode", (_IM2COL, _PATCH), "activations by im2col, a tap at a time, or by patch, with the halo"),
    Parameter("activation_slots", tuple(range(1, 13)), "fills of activations in flight"),
    Parameter("weight_slots", tuple(range(13)), "tiles of weights in flight; 0: all of a column, resident"),
    Parameter("grid", (0, 132, 264, 396, 528), "most blocks: 0 gives each tile a block of its own"),
    Parameter("raster", (0, 1), "1: blocks that follow each other share weights instead of pixels"),
    Parameter("squares_h", (0, 1, 2, 3, 4), "patch: squares of 8 x 8 pixels in a tile, down"),
    Parameter("squares_w", (0, 1, 2, 3, 4), "patch: across"),
    Parameter("images", (0, 1, 2, 3, 4), "patch: and over images"),
)

FAMILY = Family(
    name="sm90_conv2d",
    operator=Conv2d,
    kind=DEVICE_IMAGE,
    template="sm90/conv2d.cu.j2",
    architectures=("sm90",),
    parameters=(
        Parameter("tile_m", (64, 128, 192, 256), "output pixels of a tile"),
        Parameter("tile_n", (32, 64, 96, 128, 192, 256), "output channels of a tile"),
        Parameter("tile_k", (16, 32, 64), "input channels a step"),
        Parameter("groups", (1, 2, 3), "warpgroups that multiply"),
        Parameter("schedule", ("cooperative", "pingpong"), "the warpgroups share a tile, or have one each, in turn"),
        Parameter("cluster_m", (1, 2, 4), "blocks that share their loads of weights"),
        Parameter("cluster_n", (1, 2, 4), "blocks that share their loads of activations"),
        Parameter("slices", (1, 2, 4, 8), "blocks of a cluster that split a tile's channels and taps"),
    ),
    launch_parameters=_LAUNCH_PARAMETERS,
    legal=_legal,
    supports=_supports,
    launches=_launches,
    cost=_cost,
    context=_context,
    label=_label,
    weight_layouts=lambda _: {"weight": "wgmma"},
)
