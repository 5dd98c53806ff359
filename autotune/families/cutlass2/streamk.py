"""What the families with templates/cutlass2/stream.cuh share: a matrix product whose steps along K are dealt to blocks.

fp16 and bf16 with float32 accumulation. `family` makes one of what is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.core import Architecture, ceil_div
from autotune.families import cuda_shared
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.families.cutlass2 import tiling
from autotune.families.cutlass2.rules import broken
from autotune.families.cutlass2.tiling import Tile
from autotune.ir import Epilogue, Problem

ALIGNMENTS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Work:
    """What is dealt: tiles along m and n, and for each of them steps of `iterations` main-loop iterations."""

    tiles_m: int
    tiles_n: int
    steps: int
    iterations: float = 1

    @classmethod
    def of(cls, sizes: tuple[int, int, int], tile: Tile) -> Work:
        """A product of sizes (m, n, k)."""
        return cls(*map(ceil_div, sizes, tile.shape))


@dataclass(frozen=True)
class Product:
    """How a family's problems are matrix products.

    k_major: whether the operands A and B lie along K. m, n, k: what the sizes stand for; split: what a split divides.
    work: (problem, tile) -> what is dealt.
    decided: (problem) -> parameters behind those of the tile, for each the one value that a kernel must have.
    """

    k_major: tuple[bool, bool]
    m: str
    n: str
    k: str
    split: str
    work: Callable[[Problem, Tile], Work]
    decided: Callable[[Problem], Mapping[str, Value]]

    def tile(self, config: Config, dtype: str) -> Tile:
        """A config's tile."""
        return tiling.tile_of(config, dtype, self.k_major)


def family(
    name: str,
    operator: type[Problem] | tuple[type[Problem], ...],
    template: str,
    product: Product,
    parameters: Sequence[Parameter],
    *,
    supports: Callable[[Problem], str | None],
    context: Callable[[Config], Mapping[str, object]] = lambda _: {},
    label: Callable[[Config], str] = tiling.label,
    weight_layouts: Mapping[str, str] | None = None,
) -> Family:
    """A family of such products; parameters: those behind the tile's; context: the template's variables beside it."""

    def legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
        return broken(product.tile(config, dtype), arch)

    def values(
        parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
    ) -> Sequence[Value]:
        decided = product.decided(problem) if problem else {}
        if parameter.name in decided:
            return (decided[parameter.name],)
        return _possible(parameter, chosen, arch, decided.get("alignment"))

    def launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
        if any(config[name] != value for name, value in product.decided(problem).items()):
            return []
        tile = product.tile(config, problem.dtype)
        work = product.work(problem, tile)
        return [
            {"swizzle": log, "slices": slices, "stream": stream}
            for slices, stream in _deals(work, tile, arch)
            for log in tiling.swizzles(work.tiles_n)
        ]

    def cost(problem: Problem, config: Config, arch: Architecture) -> float:
        tile = product.tile(config, problem.dtype)
        return _cycles(product.work(problem, tile), tile, arch)

    return Family(
        name=name,
        operator=operator,
        kind=DEVICE_IMAGE,
        template=template,
        architectures=cuda_shared.ARCHITECTURES,
        dtypes=("f16", "bf16"),
        parameters=(*_tile_parameters(product.m, product.n, product.k), *parameters),
        launch_parameters=(
            Parameter("swizzle", (0, 1, 2), "log2 of how many tiles of N follow each other"),
            Parameter(
                "slices", (1, 2, 4, 8, 16, 32, 64), f"split of the {product.split} over blocks, summed in float32"
            ),
            Parameter("stream", (0, 1, 2, 3, 4), "blocks a processor that share all tiles' steps equally; 0: off"),
        ),
        legal=legal,
        values=values,
        supports=supports,
        launches=launches,
        cost=cost,
        context=lambda config, arch, dtype: {**tiling.context(product.tile(config, dtype)), **context(config)},
        label=label,
        weight_layouts=lambda _: weight_layouts or {},
    )


def _tile_parameters(m: str, n: str, k: str) -> tuple[Parameter, ...]:
    return (
        Parameter("generation", tiling.GENERATIONS, "whose tensor-core instructions: that of the architecture"),
        Parameter("tile_m", (32, 64, 128, 256), f"threadblock tile: {m}"),
        Parameter("tile_n", (32, 64, 128, 256), f"threadblock tile: {n}"),
        Parameter("tile_k", (32, 64), f"threadblock tile: {k} a step"),
        Parameter("warp_m", (16, 32, 64), f"warp tile: {m}"),
        Parameter("warp_n", (16, 32, 64), f"warp tile: {n}"),
        Parameter("warp_k", (32, 64), f"warp tile: {k}; half of tile_k slices K over warps"),
        Parameter("stages", (2, 3, 4, 5, 6), "tiles in flight between memory and tensor cores"),
    )


def _possible(parameter: Parameter, chosen: Config, arch: Architecture, alignment: Value | None) -> Sequence[Value]:
    """A tile's values that can be legal beside those chosen so far. alignment: of the problem, if there is one."""
    values, generation = parameter.values, tiling.generation_of(arch)
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
        case "alignment" if generation >= 80:  # more than two stages are made of cp.async, which moves at least 4 bytes
            values = tuple(v for v in values if (v == 1) == (chosen["stages"] == 2))
    return values


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


def _cycles(work: Work, tile: Tile, arch: Architecture) -> float:
    """A crude model: steps of a processor, each bound by tensor cores, by its loads or by latency."""
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
