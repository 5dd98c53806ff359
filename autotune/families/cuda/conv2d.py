"""Convolutions of images by mma.sync, from sm_80 on: the input under a tile in shared memory once for all taps.

See templates/cuda/conv2d.cuh for how it works. Of CUTLASS 2.x's convolutions each step gathers its pixels anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import ceil

from autotune.core import Architecture
from autotune.families import cuda_shared, se_gate
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.families.cutlass2 import tiling
from autotune.ir import Conv2d, Conv2dFoldedSe, Conv2dSe, Epilogue, Problem

_STEP = 64  # channels
_ROW = 128  # bytes of a pixel's or a filter's channels in shared memory
_MOST_TAPS = 64
_SIDES = (4, 7, 8, 14, 16, 28, 32, 56, 64)
_MOST_TILES, _MOST_WORK = 3, 1.3  # ways to cut an output that are tried; their work, times the least

Solved = Conv2d | Conv2dSe | Conv2dFoldedSe


@dataclass(frozen=True)
class _Shape:
    """A config with its names spelt out, and what follows from it."""

    m: int
    n: int
    warp_m: int
    warp_n: int
    slices: int
    taps: int
    stages: int
    hidden: int = 0
    """Columns of a warp's products beside its channels: the hidden values of a folded squeeze-and-excitation."""

    @property
    def threads(self) -> int:
        return 32 * (self.m // self.warp_m) * (self.n // self.warp_n) * self.slices

    @property
    def pieces(self) -> int:
        """Of a warp's sums: blocks of 16 pixels and 32 channels."""
        return self.warp_m // 16 * (self.warp_n // 32)

    @property
    def accumulators(self) -> int:
        return self.warp_m * (self.warp_n + self.hidden) // 32

    @property
    def registers(self) -> int:
        return self.accumulators + self.warp_m // 2 + (self.warp_n + self.hidden) // 2 + 56

    @property
    def stage_bytes(self) -> int:
        return self.taps * (self.n + self.hidden) * _ROW

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor must have registers for."""
        return max(1, min(4, cuda_shared.REGISTERS // (self.registers * self.threads)))

    def shared_bytes(self, pixels: int, patches: int) -> int:
        """pixels: of a patch."""
        warps = (self.m // self.warp_m) * (self.n // self.warp_n)
        sums = self.m * self.n * 4 + warps * (self.warp_m // 16) * self.hidden * 32
        exchanged = self.slices * sums if self.slices > 1 else 0
        return max(patches * pixels * _ROW + self.stages * self.stage_bytes, exchanged)


def _shape(config: Config) -> _Shape:
    names = ("tile_m", "tile_n", "warp_m", "warp_n", "taps", "stages")
    sizes = {name.removeprefix("tile_"): int(config[name]) for name in names}
    return _Shape(**sizes, slices=int(config.get("slices", 1)), hidden=int(config.get("hidden", 0)))


@dataclass(frozen=True)
class _Tile:
    """A tile's rows and columns of an image, or how many images; pixels of the patch under it; tiles of the problem."""

    p: int
    q: int
    images: int
    pixels: int
    tiles: int


def _tile(problem: Solved, x: _Shape, p: int, q: int) -> _Tile:
    images = min(x.m // (p * q), problem.n) if (p, q) == (problem.p, problem.q) else 1
    high, wide = (
        stride * (extent - 1) + dilation * (filter_ - 1) + 1
        for stride, extent, dilation, filter_ in zip(
            problem.stride, (p, q), problem.dilation, (problem.r, problem.s), strict=True
        )
    )
    tiles = ceil(problem.n / images) * ceil(problem.p / p) * ceil(problem.q / q)
    return _Tile(p, q, images, images * high * wide, tiles)


def _tiles(problem: Solved, x: _Shape) -> list[_Tile]:
    """The ways to cut the output that are worth trying: few tiles, and small patches."""
    if isinstance(problem, Conv2dSe | Conv2dFoldedSe):
        area = problem.p * problem.q
        return [_tile(problem, x, problem.p, problem.q)] if area <= x.m and x.m % area == 0 else []
    widths = sorted({min(side, problem.q, x.m) for side in (*_SIDES, problem.q)})
    cut = [_tile(problem, x, min(problem.p, x.m // width), width) for width in widths]
    work = {tile: tile.tiles * (x.m + tile.pixels / 2) for tile in cut}
    least = min(work.values())
    return sorted((tile for tile in cut if work[tile] < _MOST_WORK * least), key=work.__getitem__)[:_MOST_TILES]


def _gate_bytes(problem: Solved, x: _Shape) -> int:
    if isinstance(problem, Conv2dFoldedSe):
        return se_gate.folded_bytes(x.m, x.n, x.hidden, x.threads // 32)
    if not isinstance(problem, Conv2dSe):
        return 0
    return se_gate.shared_bytes(x.m, x.n, problem.p * problem.q, problem.hidden)


def _steps(problem: Solved, x: _Shape) -> tuple[int, int]:
    """(chunks of channels, steps of each)."""
    return ceil(problem.c / _STEP), problem.r * problem.s // x.taps


def _patches(problem: Solved, x: _Shape) -> list[int]:
    """How many patches may be in shared memory: two, so that one is loaded while another is read, or all."""
    chunks, steps = _steps(problem, x)
    if chunks > 1 and steps < x.stages - 1:
        return []  # a step waits for what was asked for so many steps before it, and would not find the next patch
    return sorted({min(chunks, 2), chunks})


def _ways(problem: Solved, x: _Shape, arch: Architecture) -> Iterator[tuple[_Tile, int, int]]:
    """(how the output is cut, patches, the block's shared memory) of every launch that has room."""
    for tile in _tiles(problem, x):
        for patches in _patches(problem, x):
            shared = x.shared_bytes(tile.pixels, patches) + _gate_bytes(problem, x)
            if shared <= arch.block_shared:
                yield tile, patches, shared


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    assert isinstance(problem, Solved)
    ways = _ways(problem, _shape(config), arch)
    return [{"tile_p": tile.p, "tile_q": tile.q, "patches": patches} for tile, patches, _ in ways]


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    gated = se_gate.legal(epilogue) if "gate" in epilogue.names else ()
    return next((why for broken, why in chain(gated, _rules(_shape(config), arch)) if broken), None)


def _rules(x: _Shape, arch: Architecture) -> Iterator[tuple[bool, str]]:
    yield x.warp_m > x.m or x.warp_n > x.n, "a warp's part is larger than the tile"
    yield not 64 <= x.threads <= 512, "64 to 512 threads"
    yield x.pieces % x.slices > 0, "each slice must finish as many pieces"
    yield x.threads // 8 > x.n, "a thread copies the same filters of every tap"
    yield x.hidden > 0 and x.threads // 8 % 8 > 0, "a thread's filters are multiples of eight apart"
    yield x.registers * x.threads > cuda_shared.REGISTERS or x.registers > 250, "the sums would spill"
    yield x.shared_bytes(x.m, 1) > arch.block_shared, "shared memory"


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, Solved)
    return next((why for beyond, why in _limits(problem) if beyond), None) or tiling.too_large(problem)


def _limits(problem: Solved) -> Iterator[tuple[bool, str]]:
    yield problem.groups > 1, "groups"
    yield problem.c % 8 > 0 or problem.k % 8 > 0, "c and k must be multiples of 8"
    yield problem.stride not in ((1, 1), (2, 2)), "stride 1 or 2"
    yield problem.r * problem.s > _MOST_TAPS, f"filters of up to {_MOST_TAPS} taps"
    if isinstance(problem, Conv2dSe | Conv2dFoldedSe):
        yield from se_gate.limits(problem)


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> tuple[Value, ...]:
    def well(value: int) -> bool:
        solved = problem if isinstance(problem, Solved) else None
        match parameter.name:
            case "warp_m" | "warp_n":
                return value <= int(chosen[parameter.name.replace("warp", "tile")])
            case "tile_n" if solved:  # a gated tile has all channels; no column is half empty
                return (solved.k if isinstance(solved, Conv2dSe) else 0) <= value < 2 * max(solved.k, 32)
            case "taps" if solved:
                return solved.r * solved.s % value == 0
        return True

    return tuple(value for value in parameter.values if well(int(value)))


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, Solved)
    x = _shape(config)
    if problem.r * problem.s % x.taps:
        return f"it takes {x.taps} taps a step"
    if isinstance(problem, Conv2dSe) and problem.k > x.n:
        return "a gated tile has all channels"
    return None


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: rounds of tiles, bound by products, shared memory or loads, or by a warp's own steps.

    Its constants are fitted to 172 kernels timed on the layers of SE-ResNet9 on an H200.
    """
    assert isinstance(problem, Solved)
    x = _shape(config)
    chunks, each = _steps(problem, x)
    best, columns = float("inf"), ceil(problem.k / x.n)
    for tile, _, shared in _ways(problem, x, arch):
        beside = arch.sm_shared // (shared + arch.reserved_shared)
        resident = max(1, min(beside, x.resident, arch.sm_threads // x.threads))
        blocks = tile.tiles * columns
        rounds, sharing = ceil(blocks / (arch.processors * resident)), min(resident, ceil(blocks / arch.processors))
        bytes_ = x.stage_bytes + tile.pixels * _ROW / each  # of a step
        products = x.taps * x.m * (x.n + x.hidden * (x.n // x.warp_n)) * _STEP / (1200 if arch.name == "sm90" else 1000)
        read = x.taps * (x.m * (x.n // x.warp_n) + x.n * (x.m // x.warp_m))
        alone = (550 if x.stages == 2 else 350) + 8 * x.taps * x.accumulators / x.slices + bytes_ / 8 / x.threads
        step = max(sharing * max(products, read, bytes_ / 28), alone)
        ends = 3000 + (tile.pixels * _ROW + x.stage_bytes) / 60 + x.m * x.n / 6 * sharing + (500 if x.slices > 1 else 0)
        best = min(best, rounds * (ends + chunks * each * step))
    return best


def _label(config: Config) -> str:
    x = _shape(config)
    split = f" slices {x.slices}" if x.slices > 1 else ""
    return f"{x.m}x{x.n}/{x.warp_m}x{x.warp_n} taps {x.taps} s{x.stages}{split}"


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    x = _shape(config)
    own = {"slices": x.slices, "hidden": x.hidden, "threads": x.threads, "resident": x.resident}
    return {**config, **own, "block": False, "image": 0}


FAMILY = Family(
    name="cuda_conv2d",
    operator=(Conv2d, Conv2dSe),
    kind=DEVICE_IMAGE,
    template="cuda/conv2d.cu.j2",
    architectures=cuda_shared.MMA_ARCHITECTURES,
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("tile_m", (64, 128, 256), "output pixels of a tile"),
        Parameter("tile_n", (32, 64, 128, 256), "output channels of a tile"),
        Parameter("warp_m", (16, 32, 64), "pixels of a warp"),
        Parameter("warp_n", (32, 64), "channels of a warp"),
        Parameter("slices", (1, 2, 4), "warps that share the channels of a step, and their sums at the end"),
        Parameter("taps", (1, 3), "taps a step, of 64 channels"),
        Parameter("stages", (2, 3, 4), "buffers of weights"),
    ),
    launch_parameters=(
        Parameter("tile_p", tuple(range(1, 257)), "rows of a tile"),
        Parameter("tile_q", tuple(range(1, 257)), "columns of a tile"),
        Parameter("patches", tuple(range(1, 65)), "buffers of input"),
    ),
    legal=_legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    context=_context,
    label=_label,
    weight_layouts=lambda _: {"weight": "krsc"},
    compile_seconds=(1.1, 1.3),
)
