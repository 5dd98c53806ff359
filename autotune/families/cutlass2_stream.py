"""What the families with templates/cutlass2/stream.cuh share: tiles, which of them compile, and how they are dealt.

Tile names follow CUTLASS: the threadblock tile (tile_*) is made of warp tiles (warp_*); warp_k < tile_k slices the
tile's K over warps (sliced-K). The rules mirror static assertions of CUTLASS's headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.arch import Architecture
from autotune.families.base import Config, Launch, Parameter, Value
from autotune.problem import Problem

# The tensor-core instruction of each generation. Its code runs on newer GPUs too; 2.x has none newer than Ampere's.
_INSTRUCTIONS = {70: (8, 8, 4), 75: (16, 8, 8), 80: (16, 8, 16)}
_GENERATIONS = {70: 70, 75: 75, 80: 80, 86: 80, 89: 80, 90: 80}  # whose instructions a capability's kernels use
_ELEMENTS = {"f16": "cutlass::half_t", "bf16": "cutlass::bfloat16_t"}
_SHAPE = ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "warp_k")
_ACCESS = 8  # elements of the widest access: 16 bytes
_STORE = 128  # elements that a row of a warp's threads stores at a time, where it can

ARCHITECTURES = ("sm70", "sm75", "sm80", "sm86", "sm89", "sm90")
ALIGNMENTS = (1, 2, 4, 8)


def parameters(m: str, n: str, k: str) -> tuple[Parameter, ...]:
    """The axes of a tile; m, n, k: what the GEMM's sizes stand for."""
    return (
        Parameter("generation", tuple(_INSTRUCTIONS), "whose tensor-core instructions: that of the architecture"),
        Parameter("tile_m", (32, 64, 128, 256), f"threadblock tile: {m}"),
        Parameter("tile_n", (32, 64, 128, 256), f"threadblock tile: {n}"),
        Parameter("tile_k", (32, 64), f"threadblock tile: {k} a step"),
        Parameter("warp_m", (16, 32, 64), f"warp tile: {m}"),
        Parameter("warp_n", (16, 32, 64), f"warp tile: {n}"),
        Parameter("warp_k", (32, 64), f"warp tile: {k}; half of tile_k slices K over warps"),
        Parameter("stages", (2, 3, 4, 5, 6), "tiles in flight between memory and tensor cores"),
    )


def launch_parameters(k: str) -> tuple[Parameter, ...]:
    """Launch values; k: what is split."""
    return (
        Parameter("swizzle", (0, 1, 2), "log2 of how many tiles of N follow each other"),
        Parameter("slices", (1, 2, 4, 8, 16, 32, 64), f"split of the {k} over blocks, summed in float32"),
        Parameter("stream", (0, 1, 2, 3, 4), "blocks a processor that share the steps of all tiles equally; 0: off"),
    )


@dataclass(frozen=True)
class Tile:
    """A config's tile. k_major: whether A and B lie along K; vector: elements of an access to the output."""

    generation: int
    shape: tuple[int, int, int]
    warp: tuple[int, int, int]
    stages: int
    alignment: int
    vector: int
    k_major: tuple[bool, bool]

    @classmethod
    def of(cls, config: Config, k_major: tuple[bool, bool]) -> Tile:
        """The tile of a config; the output's vector is the alignment where the config names no other."""
        m, n, k, wm, wn, wk = (int(config[name]) for name in _SHAPE)
        alignment = int(config["alignment"])
        vector = int(config.get("vector", alignment))
        generation, stages = int(config["generation"]), int(config["stages"])
        return cls(generation, (m, n, k), (wm, wn, wk), stages, alignment, vector, k_major)

    @property
    def warps(self) -> tuple[int, int, int]:
        """Warps along m, n and k."""
        (m, n, k), (wm, wn, wk) = self.shape, self.warp
        return m // wm, n // wn, k // wk

    @property
    def threads(self) -> int:
        """Threads of a block."""
        m, n, k = self.warps
        return 32 * m * n * k

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: the larger of main loop and epilogue."""
        (m, n, k), (warps_m, _, partitions) = self.shape, self.warps
        rows, padding = (16, 2) if self.generation == 70 else (8, 8)
        return max(self.stages * (m + n) * k * 2, warps_m * rows * partitions * (n + padding) * 4)

    def broken(self, arch: Architecture) -> str | None:
        """The first rule that the tile breaks, or None. Its generation is the architecture's."""
        return next((why for is_broken, why in self._rules(arch) if is_broken), None)

    def _rules(self, arch: Architecture) -> Iterator[tuple[bool, str]]:
        """In an order in which each rule may rely on those before it."""
        (m, n, k), (wm, wn, wk) = self.shape, self.warp
        yield m % wm > 0 or n % wn > 0 or k not in (wk, 2 * wk), "warp tiles do not divide the threadblock tile"
        # They compile, but the warps' loads from shared memory then go beyond the tile.
        narrow = [extent < 32 and not major for extent, major in zip((wm, wn), self.k_major, strict=True)]
        yield any(narrow), "warp tiles of at least 32 along an operand that is not K-major"
        yield not 64 <= self.threads <= 256, "64 to 256 threads"
        yield self.shared_bytes > arch.block_shared, "shared memory"
        yield not self._stores_whole_tile(), "the epilogue's threads do not fit the tile"
        if self.generation == 70:
            yield k != 32 or wk != 32 or wm % 32 > 0 or wn % 32 > 0, "sm70: tile_k 32, warps of multiples of 32x32"
            yield wm * wn == 64 * 64 and self.threads < 128, "sm70: the accumulators would spill"
        else:
            steps = wk // _INSTRUCTIONS[self.generation][2]
            yield steps < 2 or steps % 2 > 0, "warp_k must be an even multiple of the instruction's"
        loads = self._loads(m, self.k_major[0]) and self._loads(n, self.k_major[1])
        yield not loads, "the threads do not fit an operand's tile"

    def _loads(self, extent: int, k_major: bool) -> bool:
        """Whether the threads that load a tile of an operand fit it."""
        along, across = (self.shape[2], extent) if k_major else (extent, self.shape[2])
        columns, warps = along // _ACCESS, self.threads // 32
        lanes = columns if k_major else 8 if self.generation == 70 else min(8, columns)
        if 32 % lanes or columns % lanes or across % (32 // lanes):
            return False
        wide, high = columns // lanes, across // (32 // lanes)
        each = wide // max(1, warps // high)  # of a thread, along the operand
        return each == 1 if k_major else each > 0

    def _stores_whole_tile(self) -> bool:
        """Whether the epilogue's map of threads covers the tile, each element once.

        A map with lanes to spare compiles, and then covers some rows twice and misses others.
        """
        rows, groups = (4, 4) if self.generation == 70 else (8, 1)  # that warps side by side leave at a time
        side = max(1, self.warps[1] * self.warps[2] // groups)
        width, wanted = self.shape[1] // self.vector, _STORE // self.vector
        if rows <= side:  # a warp stores one row
            return rows == side and width >= 32
        rows_a_warp = rows // side
        if wanted <= 32 and 32 // wanted > rows_a_warp:
            lanes, lane_rows = 32 // rows_a_warp, rows_a_warp
        else:
            lanes = min(width, 32, wanted)
            lane_rows = min(rows, 32 // lanes)
        return lanes <= width and lane_rows <= rows_a_warp and lanes * lane_rows == 32

    def resident(self, arch: Architecture) -> int:
        """Blocks on a processor by shared memory, threads and an estimate of registers."""
        registers = min(255, self.warp[0] * self.warp[1] // 32 + 90)
        by_shared = arch.sm_shared // (self.shared_bytes + arch.reserved_shared)
        return max(1, min(by_shared, 65536 // (registers * self.threads), arch.sm_threads // self.threads))


def possible(parameter: Parameter, chosen: Config, arch: Architecture, alignment: int | None) -> Sequence[Value]:
    """A tile's values that can be legal beside those chosen so far. alignment: of the problem, if there is one."""
    name, generation = parameter.name, _GENERATIONS.get(arch.capability or 0, 0)
    if name == "generation":
        return (generation,)
    if name in ("warp_m", "warp_n"):
        return [value for value in parameter.values if int(chosen[f"tile_{name[-1]}"]) % int(value) == 0]
    if name == "warp_k":
        return [value for value in parameter.values if chosen["tile_k"] in (value, 2 * int(value))]
    if name == "stages" and (generation < 80 or alignment == 1):
        return (2,)
    if name == "stages" and alignment:
        return [value for value in parameter.values if value != 2]
    return parameter.values


def unavailable(config: Config, arch: Architecture, dtype: str) -> str | None:
    """What an architecture does not have of a config, or None: what can be said before its tile is looked at."""
    generation = _GENERATIONS.get(arch.capability or 0, 0)
    if config["generation"] != generation:
        return f"{arch.name} has the instructions of sm{generation}"
    if dtype not in _ELEMENTS or (dtype == "bf16" and generation < 80):
        return f"sm{generation} has no {dtype}"
    # Three stages and more are made of cp.async, which exists from sm80 on and moves at least 4 bytes.
    asynchronous = generation >= 80 and config["alignment"] != 1
    if asynchronous == (config["stages"] == 2):
        return "at least three stages" if asynchronous else "two stages"
    return None


@dataclass(frozen=True)
class Work:
    """What is dealt: tiles along m and n, and for each of them steps of `iterations` main-loop iterations."""

    tiles_m: int
    tiles_n: int
    steps: int
    iterations: float = 1


def ceil_div(a: int, b: int) -> int:
    """The least whole number that is not below a / b."""
    return -(-a // b)


def widest(*extents: int) -> int:
    """The widest access that divides all extents."""
    return max(width for width in ALIGNMENTS if all(extent % width == 0 for extent in extents))


def _deals(work: Work, tile: Tile, arch: Architecture) -> list[tuple[int, int]]:
    """(slices, stream) worth trying: splits where tiles do not fill the machine, shares where they do not evenly."""
    tiles, resident = work.tiles_m * work.tiles_n, tile.resident(arch)
    room = 2 * arch.processors * resident
    slices = [s for s in (1, 2, 4, 8, 16, 32, 64) if s == 1 or (s <= work.steps and tiles * s <= room)]
    streams = [
        stream
        for stream in sorted({1, min(resident, 4)})
        if work.steps > 1 and tiles % (stream * arch.processors) and tiles * work.steps > stream * arch.processors
    ]
    return [(s, 0) for s in slices] + [(1, stream) for stream in streams]


def launches(work: Work, tile: Tile, arch: Architecture) -> list[Launch]:
    """The launch values worth timing, the plainest first."""
    swizzles = [log for log in (0, 1, 2) if log == 0 or 2**log <= work.tiles_n]
    return [
        {"swizzle": log, "slices": slices, "stream": stream}
        for slices, stream in _deals(work, tile, arch)
        for log in swizzles
    ]


def cost(work: Work, tile: Tile, arch: Architecture) -> float:
    """Cycles by a crude model: steps of a processor, each bound by tensor cores, by its loads or by latency."""
    m, n, k = tile.shape
    tiles, resident = work.tiles_m * work.tiles_n, tile.resident(arch)
    latency = 700 / (tile.stages - 1) if tile.stages != 2 else 600
    best = float("inf")
    for slices, stream in _deals(work, tile, arch):
        blocks = stream * arch.processors if stream else tiles * slices
        waves = 1 if stream else ceil_div(blocks, arch.processors * resident)
        sharing = min(resident, ceil_div(blocks, arch.processors))
        steps = tiles * work.steps / blocks if stream else ceil_div(work.steps, slices)
        arithmetic = m * n * k / 1024 * sharing
        loads = (m + n) * k * 2 / 48 * sharing * (8 / tile.alignment) ** 0.5
        gather = 0.4 * m * n * (3 if stream else slices + 1) / 32 if stream or slices > 1 else 0
        stores = m * n / (3 * tile.vector) * (ceil_div(tiles, blocks) if stream else 1)
        step = work.iterations * max(arithmetic, loads, latency)
        best = min(best, waves * (steps * step + 2500 + gather + stores))
    return best


def label(config: Config) -> str:
    """A tile in few characters."""
    tile, warp = ("x".join(str(config[f"{name}_{axis}"]) for axis in "mnk") for name in ("tile", "warp"))
    return f"{tile}/{warp} s{config['stages']}"


def context(tile: Tile, dtype: str) -> dict[str, object]:
    """The template's variables of a tile."""
    return {
        "cutlass_element": _ELEMENTS[dtype],
        "arch_tag": f"cutlass::arch::Sm{tile.generation}",
        "threadblock": tile.shape,
        "warp": tile.warp,
        "instruction": _INSTRUCTIONS[tile.generation],
        "stages": tile.stages,
        "threads": tile.threads,
        "shared_bytes": tile.shared_bytes,
        "alignment": tile.alignment,
        "vector": tile.vector,
    }


def too_large(problem: Problem) -> str | None:
    """What iterators with 32-bit strides cannot address."""
    return "tensors under 2 GiB" if max(operand.bytes for operand in problem.operands()) >= 2**31 else None
