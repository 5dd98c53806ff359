"""The base class of matrix products with Stream-K and split-K, which share templates/cutlass2/stream.cuh.

Steps along K are distributed over blocks, as in Stream-K (Osama et al., arXiv 2301.03598); fp16 and bf16 with float32
accumulation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from autotune.core import Architecture, ceil_div, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Rules, Value
from autotune.families.cutlass2 import tile as tiles
from autotune.families.cutlass2.tile import ThreadblockTile
from autotune.families.cutlass2.tile_rules import why_illegal as why_tile_illegal
from autotune.ir import Epilogue, Problem

P = TypeVar("P", bound=Problem)

ALIGNMENTS = (1, 2, 4, 8)
"""Elements of an access."""

# For the cost: estimates for sm80, not fitted.
_FMA_A_CYCLE = 1024  # of an SM, for halves: the peak of an A100's
_LOADED_BYTES_A_CYCLE = 48  # from the L2 cache
_BLOCK_CYCLES = 2500  # of a block beside its steps and its output


@dataclass(frozen=True)
class StreamKWork:
    """The work that is distributed over blocks.

    Attributes:
        tiles_m: Tiles along m.
        tiles_n: Tiles along n.
        steps: Steps along K of each tile.
        iterations: Main-loop iterations of a step.
    """

    tiles_m: int
    tiles_n: int
    steps: int
    iterations: float = 1

    @classmethod
    def of(cls, sizes: tuple[int, int, int], tile: ThreadblockTile) -> StreamKWork:
        """Return the work of a product of sizes (m, n, k)."""
        (m, n, k), (tile_m, tile_n, tile_k) = sizes, tile.shape
        return cls(tiles_m=ceil_div(m, tile_m), tiles_n=ceil_div(n, tile_n), steps=ceil_div(k, tile_k))


def product_parameters(m: str, n: str, k: str, *own: Parameter) -> tuple[Parameter, ...]:
    """Return the parameters of a product's tile, in words for its extents, and those of a family's own."""
    return (
        Parameter("generation", tiles.GENERATIONS, "generation of its instructions: the architecture's"),
        Parameter("tile_m", (32, 64, 128, 256), f"threadblock tile: {m}"),
        Parameter("tile_n", (32, 64, 128, 256), f"threadblock tile: {n}"),
        Parameter("tile_k", (32, 64), f"threadblock tile: {k} a step"),
        Parameter("warp_m", (16, 32, 64), f"warp tile: {m}"),
        Parameter("warp_n", (16, 32, 64), f"warp tile: {n}"),
        Parameter("warp_k", (32, 64), f"warp tile: {k}; half of tile_k slices K over warps"),
        Parameter("stages", (2, 3, 4, 5, 6), "tiles in flight between memory and tensor cores"),
        *own,
    )


def split_parameters(split: str) -> tuple[Parameter, ...]:
    """Return the launch parameters, in words for the extent that a split divides."""
    return (
        Parameter("swizzle", (0, 1, 2), "log2 of how many tiles of N follow each other"),
        Parameter("slices", (1, 2, 4, 8, 16, 32, 64), f"split of the {split} over blocks, summed in float32"),
        Parameter("stream", (0, 1, 2, 3, 4), "blocks an SM that share all tiles' steps equally; 0: off"),
    )


class StreamKFamily(Family[P]):
    """Products whose steps along K are distributed over blocks.

    Attributes:
        k_major: Whether the operands A and B are contiguous along K.
    """

    kind = DEVICE_IMAGE
    architectures = cuda_architectures()
    dtypes = ("f16", "bf16")
    k_major: tuple[bool, bool]

    @abstractmethod
    def work(self, problem: P, tile: ThreadblockTile) -> StreamKWork:
        """Return the work that is distributed."""

    def tile(self, config: Config, dtype: str) -> ThreadblockTile:
        """Return a config's tile."""
        return tiles.tile_of(config, dtype, self.k_major)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield why_tile_illegal(self.tile(config, dtype), arch)

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: P | None
    ) -> Sequence[Value]:
        decided = self.decided(problem) if problem else {}
        if parameter.name in decided:
            return (decided[parameter.name],)
        return _tile_values(parameter, chosen, arch, decided.get("alignment"))

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        tile = self.tile(config, problem.dtype)
        work = self.work(problem, tile)
        return [
            {"swizzle": log, "slices": slices, "stream": stream}
            for slices, stream in _distributions(work, tile, arch)
            for log in tiles.swizzles(work.tiles_n)
        ]

    def cost(self, problem: P, config: Config, arch: Architecture) -> float:
        tile = self.tile(config, problem.dtype)
        return _cycles(self.work(problem, tile), tile, arch)

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return tiles.context(self.tile(config, dtype))

    def label(self, config: Config) -> str:
        return tiles.label(config)


def _tile_values(parameter: Parameter, chosen: Config, arch: Architecture, alignment: Value | None) -> Sequence[Value]:
    """Return a parameter's values that can be legal with those chosen so far; alignment: the problem's, if any."""
    values, generation = parameter.values, tiles.generation_of(arch)
    match parameter.name:
        case "generation":
            values = (generation,)
        case "warp_m" | "warp_n" as name:
            values = tuple(v for v in values if int(chosen[name.replace("warp", "tile")]) % int(v) == 0)
        case "warp_k":
            values = tuple(v for v in values if chosen["tile_k"] in (v, 2 * int(v)))
        case "stages" if generation < 80 or alignment == 1:
            values = (2,)
        case "stages" if alignment:
            values = tuple(v for v in values if v != 2)
        case "alignment" if generation >= 80:  # three and more stages use cp.async: at least 4 bytes
            values = tuple(v for v in values if (v == 1) == (chosen["stages"] == 2))
    return values


def widest_access(*extents: int) -> int:
    """Return the widest of ALIGNMENTS that divides all extents."""
    return max(width for width in ALIGNMENTS if all(extent % width == 0 for extent in extents))


def _distributions(work: StreamKWork, tile: ThreadblockTile, arch: Architecture) -> list[tuple[int, int]]:
    """Return the (slices, stream) worth trying.

    Splits are tried if the tiles do not fill the machine twice, Stream-K if they are no multiple of its blocks.
    """
    count, resident = work.tiles_m * work.tiles_n, tile.resident(arch)
    room = 2 * arch.processors * resident
    slices = [s for s in (1, 2, 4, 8, 16, 32, 64) if s == 1 or (s <= work.steps and count * s <= room)]
    streams = [
        stream
        for stream in sorted({1, min(resident, 4)})
        if work.steps > 1 and count % (stream * arch.processors) and count * work.steps > stream * arch.processors
    ]
    return [(s, 0) for s in slices] + [(1, stream) for stream in streams]


def _cycles(work: StreamKWork, tile: ThreadblockTile, arch: Architecture) -> float:
    """Estimate cycles: steps of an SM, each bound by tensor cores, by its loads or by latency."""
    m, n, k = tile.shape
    count, resident = work.tiles_m * work.tiles_n, tile.resident(arch)
    latency = 700 / (tile.stages - 1) if tile.stages != 2 else 600
    best = float("inf")
    for slices, stream in _distributions(work, tile, arch):
        blocks = stream * arch.processors if stream else count * slices
        waves = 1 if stream else ceil_div(blocks, arch.processors * resident)
        sharing = min(resident, ceil_div(blocks, arch.processors))
        steps = count * work.steps / blocks if stream else ceil_div(work.steps, slices)
        arithmetic = m * n * k / _FMA_A_CYCLE * sharing
        loads = (m + n) * k * 2 / _LOADED_BYTES_A_CYCLE * sharing * (8 / tile.alignment) ** 0.5
        gather = 0.4 * m * n * (3 if stream else slices + 1) / 32 if stream or slices > 1 else 0
        stores = m * n / (3 * tile.vector) * (ceil_div(count, blocks) if stream else 1)
        step = work.iterations * max(arithmetic, loads, latency)
        best = min(best, waves * (steps * step + _BLOCK_CYCLES + gather + stores))
    return best
