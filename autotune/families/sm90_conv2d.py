"""Forward convolution for Hopper: persistent, warp-specialised, TMA and wgmma; fp16 and bf16 with float32 sums, NHWC.

The GEMM is M = n*p*q, N = k, K = r*s*c; a linear layer is one of images of one pixel. See templates/sm90/conv2d.cuh for
how it works.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.problem import Conv2d, Conv2dSe, Gemm, Problem

_MAP_ELEMENTS = {"f16": 6, "bf16": 9}  # CUtensorMapDataType
_SHARED_OVERHEAD = 1024 + 64  # the buffers begin at a multiple of 1024; some barriers
_MOST_SHARED = 232448 - _SHARED_OVERHEAD
_REGISTERS = 65536
_SLOT_OVERHEAD = 16  # bytes of barriers
_MOST_CORNER, _MOST_OFFSET, _MOST_BOX = 128, 255, 256  # of TMA: corners and offsets of im2col, extents of a box

# For the cost: a multiprocessor's rates a cycle.
_PRODUCTS_A_CYCLE = 2048
_LOADED_BYTES_A_CYCLE = 190


@dataclass(frozen=True)
class _Shape:
    """A config with its names spelt out."""

    m: int
    n: int
    k: int
    groups: int
    pingpong: bool
    patch: bool
    resident: bool
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
    def piece_bytes(self) -> int:
        """Shared memory for a piece of the output in each warp: 16 pixels, and the barriers of those that are loaded."""
        return self.groups * 4 * (16 * (64 if self.n % 64 == 0 else 32) * 2 + 8)

    def staging_bytes(self, staged: int) -> int:
        """Shared memory that the output, and an added tensor, pass through."""
        return (2 + (staged if staged > 1 else 0)) * self.piece_bytes if staged else 0

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n * self.slices

    @property
    def weight_bytes(self) -> int:
        return self.n * self.k * 2


def _shape(config: Config) -> _Shape:
    return _Shape(
        int(config["tile_m"]),
        int(config["tile_n"]),
        int(config["tile_k"]),
        int(config["groups"]),
        config["schedule"] == "pingpong",
        config["activations"] == "patch",
        config["weights"] == "resident",
        int(config["cluster_m"]),
        int(config["cluster_n"]),
        int(config["slices"]),
    )


Solved = Conv2d | Conv2dSe


def _convolution(problem: Problem) -> Solved:
    assert isinstance(problem, Conv2d | Conv2dSe | Gemm)
    return problem.as_conv2d if isinstance(problem, Gemm) else problem


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    rules = [*_rules(_shape(config)), *(_gate_rules(_shape(config), epilogue) if "gate" in epilogue.names else ())]
    return next((why for broken, why in rules if broken), None)


def _gate_rules(x: _Shape, epilogue: Epilogue) -> Iterator[tuple[bool, str]]:
    before, *_ = epilogue.parts
    at_pixels = any(argument.kind in ("tensor", "output") for step in before for argument in step.arguments)
    yield at_pixels, "steps before the gate that read or write tensors"
    yield x.pingpong or x.resident or x.cluster_m > 1, "a gated tile belongs to one block, or to those of its columns"
    yield x.n % (64 * x.slices) > 0, "of a gated tile each block has a multiple of 64 channels: fewer leave registers"


def _rules(x: _Shape) -> Iterator[tuple[bool, str]]:
    yield x.pingpong and (x.groups != 2 or x.slices > 1), "ping-pong takes two warpgroups, each with a tile of its own"
    yield x.m % (64 * x.team) > 0, "a warpgroup multiplies blocks of 64 rows"
    yield x.accumulators > (96 if x.groups == 3 else 128), "the accumulators would spill"
    yield x.cluster_n > 1 and (x.patch or x.resident), "only streamed pixels gathered by TMA are shared"
    yield x.slices > 1 and (x.patch or x.resident), "a split tile is gathered and streamed"
    yield x.cluster > 8, "clusters of up to eight blocks"
    yield x.slices > 1 and x.cluster_m > 1, "split tiles share no weights"
    yield (x.m // x.team // 64 * 2 * (x.n // 32)) % x.slices > 0, "the split must divide the tile"
    yield x.k < 64 and (x.n > 128 or x.m > 128 or x.cluster > 1), "narrow steps are for few channels"
    yield 2 * (x.m + x.n) * x.k * 2 > _MOST_SHARED, "shared memory"


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    """What can be legal beside the values chosen so far, and is no waste for the problem."""
    shares = chosen.get("activations") != "patch" and chosen.get("weights") != "resident"
    if parameter.name == "schedule" and chosen["groups"] != 2:
        return ("cooperative",)
    if parameter.name == "cluster_n" and not shares:
        return (1,)
    if parameter.name == "slices":
        return parameter.values if shares and chosen["schedule"] == "cooperative" else (1,)
    if problem and parameter.name == "tile_n":
        return [n for n in parameter.values if int(n) < 2 * _padded(_convolution(problem).k)]
    if problem and parameter.name == "tile_k":
        return [k for k in parameter.values if _steps_well(_convolution(problem), int(k))]
    return parameter.values


def _supports(problem: Problem) -> str | None:
    return next((why for beyond, why in _limits(_convolution(problem)) if beyond), None)


def _limits(problem: Solved) -> Iterator[tuple[bool, str]]:
    yield problem.groups != 1, "groups"
    yield problem.c % 8 > 0 or problem.k % 8 > 0, "c and k must be multiples of 8"
    reach = [d * (extent - 1) for d, extent in zip(problem.dilation, (problem.r, problem.s), strict=True)]
    corner = max(*problem.pad, max(reach) - min(problem.pad))
    yield max(reach) > _MOST_OFFSET or corner > _MOST_CORNER, "filters that reach further than TMA can"
    yield max(problem.stride) > 8, "strides up to 8"
    yield problem.n * problem.p * problem.q >= 2**31, "tensors of up to 2^31 pixels"
    if isinstance(problem, Conv2dSe):
        pixels = problem.p * problem.q
        odd = pixels % 16 > 0 and 16 % pixels > 0
        yield pixels < 4 or pixels > 256 or odd, "gated images have 4, 8 or a multiple of 16 pixels, at most 256"
        yield problem.hidden % 4 > 0 or problem.hidden > 64, "a gate's hidden must be a multiple of 4, at most 64"


def _room(x: _Shape, arch: Architecture) -> int:
    """Multiprocessors that clusters can fill: those of four and more leave some of each GPC's 16 or 18 idle."""
    return arch.processors if x.cluster <= 2 else arch.processors // 16 * 16


def _is_pointwise(problem: Solved) -> bool:
    return (problem.r, problem.s, problem.stride, problem.pad) == (1, 1, (1, 1), (0, 0))


@dataclass(frozen=True)
class _Loading:
    """How a tile's activations come: squares of 8 x 8 pixels (patch), bytes of a fill, fills a tile, tiles of M."""

    squares: tuple[int, int, int]
    fill_bytes: int
    fills: int
    tiles_m: int


def _loadings(problem: Solved, x: _Shape) -> list[_Loading]:
    """The ways worth trying, the best first."""
    chunks, pixels = -(-problem.c // x.k), problem.n * problem.p * problem.q
    if not x.patch:
        return [_Loading((0, 0, 0), x.m * x.k * 2, problem.r * problem.s * chunks, -(-pixels // x.m))]
    if _is_pointwise(problem) or any(s > 1 and d > 1 for s, d in zip(problem.stride, problem.dilation, strict=True)):
        return []
    found = []
    axes = list(zip((problem.r, problem.s), problem.stride, problem.dilation, strict=True))
    phases = min(problem.r, problem.stride[0]) * min(problem.s, problem.stride[1])
    halo_h, halo_w = ((-(-extent // min(extent, stride)) - 1) * dilation for extent, stride, dilation in axes)
    for h, w, images in _squares(x.m // 64):
        patch_h, patch_w = 8 * h + halo_h, 8 * w + halo_w
        if max((patch_h - 1) * problem.stride[0], (patch_w - 1) * problem.stride[1]) >= _MOST_BOX - 1:
            continue
        tiles = -(-problem.n // images) * -(-problem.p // (8 * h)) * -(-problem.q // (8 * w))
        if tiles * x.m <= 1.5 * pixels:
            found.append(_Loading((h, w, images), images * patch_h * patch_w * x.k * 2, phases * chunks, tiles))
    return sorted(found, key=lambda one: (one.tiles_m, one.fill_bytes))[:2]


def _squares(count: int) -> list[tuple[int, int, int]]:
    """Arrangements of squares: down, across and over images."""
    sides = [(h, w) for h in range(1, count + 1) for w in range(1, count // h + 1) if count % (h * w) == 0]
    return [(h, w, count // (h * w)) for h, w in sides]


def _round(size: int) -> int:
    return -(-size // 1024) * 1024


def _products(problem: Solved, x: _Shape) -> int:
    """Products of tile_k channels that a tile takes."""
    return problem.r * problem.s * -(-problem.c // x.k)


def _slots(problem: Solved, x: _Shape, loading: _Loading, room: int, fills_a_block: int) -> tuple[int, int] | None:
    """Buffers of activations and of weights: what fits `room` bytes of shared memory, and no more than are of use.

    None if too few fit.
    """
    fill, weight = _round(loading.fill_bytes) + _SLOT_OVERHEAD, x.weight_bytes + _SLOT_OVERHEAD
    products = _products(problem, x)
    if x.resident:
        fills = min((room - products * weight) // fill, 8, max(2, fills_a_block))
        return (fills, 0) if fills >= (1 if x.patch and loading.fills == 1 else 2) else None
    if not x.patch:
        stages = min(room // (fill + weight), 12, max(2, fills_a_block))
        return (stages, 0) if stages >= 2 else None
    fills = 2 if room - 2 * fill >= 3 * weight else 1
    weights = min((room - fills * fill) // weight, 12, fills_a_block * products // loading.fills)
    return (fills, weights) if weights >= 3 else None


def _blocks(problem: Solved, x: _Shape, loading: _Loading) -> int:
    """Blocks that give every tile its own, in whole clusters."""
    tiles_n = -(-problem.k // x.n)
    return -(-loading.tiles_m // x.cluster_m) * -(-tiles_n // x.cluster_n) * x.cluster


def _padded(k: int) -> int:
    """Output channels with those that fill up the weights."""
    return -(-k // 32) * 32


def _steps_well(problem: Solved, step: int) -> bool:
    """Whether a step of so many channels goes well into the problem's."""
    least = next((k for k in (16, 32, 64) if problem.c <= k), 64)
    return step == least or (step < least and problem.c < 96 and problem.c % 64 > 0)


def _gate_bytes(problem: Solved, x: _Shape) -> int:
    """Shared memory of the gate (templates/sm90/gate.cuh)."""
    if not isinstance(problem, Conv2dSe):
        return 0
    pixels, columns = problem.p * problem.q, x.n // x.slices
    images, vectors = x.m // pixels, x.cluster_n * x.slices + 1
    floats = x.m // min(pixels, 16) * columns + images * columns + vectors * images * problem.hidden
    floats += columns + problem.hidden
    weights = problem.hidden * (columns + 8) + columns * (problem.hidden + 8)
    return -(-(4 * floats + 2 * weights) // 128) * 128


def _gate_fits(problem: Conv2dSe, x: _Shape, loading: _Loading) -> bool:
    """Whether a tile is whole images, and a cluster has all of their channels."""
    h, w, _ = loading.squares
    whole = not x.patch or (problem.p, problem.q) == (8 * h, 8 * w)
    return whole and x.m % (problem.p * problem.q) == 0 and -(-problem.k // x.n) == x.cluster_n


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    problem = _convolution(problem)
    x = _shape(config)
    if x.n >= 2 * _padded(problem.k) or -(-problem.k // x.n) < x.cluster_n or not _steps_well(problem, x.k):
        return []
    tiles_n, processors = -(-problem.k // x.n), _room(x, arch)
    result: list[Launch] = []
    for loading in _loadings(problem, x):
        gated = isinstance(problem, Conv2dSe)
        if isinstance(problem, Conv2dSe) and not _gate_fits(problem, x, loading):
            continue
        blocks = _blocks(problem, x, loading)
        if loading.tiles_m < x.cluster_m or x.slices > loading.fills or (x.slices > 1 and blocks > 2 * processors):
            continue
        for resident in range(1, x.blocks_by_registers + 1):
            # Beside half the memory a block of the next kernel finds room while this one ends.
            if resident > 2 and blocks <= processors * (resident - 1):
                continue
            own = gated or x.slices > 1 or blocks <= processors * resident
            limit = 0 if own else processors * resident
            tiles = -(-blocks // limit) if limit else 1
            for staged in _stagings(problem, x):
                room = min(arch.sm_shared // resident - arch.reserved_shared - _SHARED_OVERHEAD, _MOST_SHARED)
                slots = _slots(
                    problem,
                    x,
                    loading,
                    room - x.staging_bytes(staged) - _gate_bytes(problem, x),
                    tiles * loading.fills,
                )
                if slots is None:
                    continue
                if x.slices > 1 and x.m * x.n * 4 > slots[0] * (_round(loading.fill_bytes) + x.weight_bytes):
                    continue  # the others' sums find no room
                rasters = (0, 1) if tiles_n > x.cluster_n and tiles > 1 and not x.resident and staged else (0,)
                result += [_launch(loading, slots, limit, raster, staged) for raster in rasters]
    return [launch for i, launch in enumerate(result) if launch not in result[:i]]


def _stagings(problem: Solved, x: _Shape) -> tuple[int, ...]:
    """Values of the launch parameter `staged`."""
    if x.slices > 1 or isinstance(problem, Conv2dSe):
        return (0,)
    added = [argument for argument in problem.epilogue.arguments if argument.kind == "tensor"]
    return (0, 1, *_AHEAD) if len(added) == 1 else (0, 1)


def _launch(loading: _Loading, slots: tuple[int, int], limit: int, raster: int, staged: int) -> Launch:
    h, w, images = loading.squares
    names = [parameter.name for parameter in _LAUNCH_PARAMETERS]
    return dict(zip(names, (*slots, limit, raster, h, w, images, staged), strict=True))


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: rounds of tiles, each bound by products or by loads.

    Its constants are fitted to 5000 kernels timed on 23 layers of ResNets on an H200.
    """
    problem = _convolution(problem)
    x = _shape(config)
    room, products, best = _room(x, arch), _products(problem, x), float("inf")
    for loading in _loadings(problem, x):
        blocks = _blocks(problem, x, loading)
        rounds = -(-blocks // room)
        buffers = 2 * (loading.fill_bytes + x.weight_bytes) + x.staging_bytes(1)
        beside = max(1, min(x.blocks_by_registers, rounds, arch.sm_shared // buffers)) * (2 if x.pingpong else 1)
        arithmetic = products * (x.m * max(x.n, 24) * x.k / _PRODUCTS_A_CYCLE + 120 / beside)
        weights = products * x.weight_bytes / x.cluster_m / (rounds if x.resident else 1)
        loads = (loading.fills * loading.fill_bytes / x.cluster_n + weights) / _LOADED_BYTES_A_CYCLE
        epilogue = x.m * x.n / 8
        split = 2000 if x.slices > 1 else 0
        best = min(best, rounds * (max(arithmetic, loads) / x.slices + epilogue) + split + 12 * x.m)
    return best


def _label(config: Config) -> str:
    x = _shape(config)
    extras = [
        f" {x.groups}wg" if not x.pingpong else " pingpong",
        " patch" if x.patch else "",
        " resident" if x.resident else "",
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
        "many_sums": x.groups == 2 and x.accumulators > 96,
        "resident_blocks": x.blocks_by_registers,
    }


_AHEAD = (4, 8)
"""Pieces of an added tensor that each warp may have on their way."""

_LAUNCH_PARAMETERS = (
    Parameter("fill_slots", tuple(range(1, 13)), "buffers of activations"),
    Parameter("weight_slots", tuple(range(13)), "buffers of weights where they have a ring of their own"),
    Parameter(
        "grid",
        (0, *(blocks * n for n in range(1, 5) for blocks in (128, 132))),
        "most blocks: 0 gives each tile a block of its own",
    ),
    Parameter("raster", (0, 1), "1: blocks that follow each other share weights instead of pixels"),
    Parameter("squares_h", (0, 1, 2, 3, 4), "patch: squares of 8 x 8 pixels in a tile, down"),
    Parameter("squares_w", (0, 1, 2, 3, 4), "patch: across"),
    Parameter("images", (0, 1, 2, 3, 4), "patch: and over images"),
    Parameter(
        "staged",
        (0, 1, *_AHEAD),
        "1: the output goes through shared memory and out by TMA; more: an added tensor comes so too, so many pieces ahead",
    ),
)

FAMILY = Family(
    name="sm90_conv2d",
    operator=(Conv2d, Conv2dSe, Gemm),
    kind=DEVICE_IMAGE,
    template="sm90/conv2d.cu.j2",
    architectures=("sm90",),
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("tile_m", (64, 128, 192, 256), "output pixels of a tile"),
        Parameter("tile_n", (32, 64, 96, 128, 192, 256), "output channels of a tile"),
        Parameter("tile_k", (16, 32, 64), "input channels a step"),
        Parameter("groups", (1, 2, 3), "warpgroups that multiply"),
        Parameter("schedule", ("cooperative", "pingpong"), "the warpgroups share a tile, or have one each, in turn"),
        Parameter("activations", ("im2col", "patch"), "a filter tap at a time, or the tile's patch with its halo"),
        Parameter("weights", ("streamed", "resident"), "loaded for each tile, or once for all tiles of a column"),
        Parameter("cluster_m", (1, 2, 4), "blocks that share their loads of weights"),
        Parameter("cluster_n", (1, 2, 4), "blocks that share their loads of activations"),
        Parameter("slices", (1, 2, 4, 8), "blocks of a cluster that split a tile's channels and taps"),
    ),
    launch_parameters=_LAUNCH_PARAMETERS,
    legal=_legal,
    values=_values,
    supports=_supports,
    launches=_launches,
    cost=_cost,
    context=_context,
    label=_label,
    weight_layouts=lambda _: {"weight": "wgmma"},
    compile_seconds=(1.0, 1.2),
)
