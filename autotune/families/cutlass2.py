"""Tiles of CUTLASS 2.x kernels whose operands both lie along the GEMM's K: which compile, and what they take.

The rules mirror static assertions of CUTLASS's headers, and add what those let through although it comes out wrong.
All extents are powers of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autotune.arch import Architecture

Shape = tuple[int, int, int]

# The instruction of each dtype and generation. Code of a generation runs on newer GPUs; 2.x has none after Ampere's.
_TENSOR_OPS: dict[tuple[str, int], Shape] = {
    ("f16", 70): (8, 8, 4),
    ("f16", 75): (16, 8, 8),
    ("f16", 80): (16, 8, 16),
    ("bf16", 80): (16, 8, 16),
    ("tf32", 80): (16, 8, 8),
    ("s8", 75): (8, 8, 16),
    ("s8", 80): (16, 8, 32),
}
_FMA = (1, 1, 1)
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s8": 8}
GENERATIONS = (70, 75, 80)

_ACCESS_BITS = 128  # of the threads' accesses to shared memory, from which their map is made
_STORE_BITS = 2048  # what a row of a warp's threads stores at a time, where it can
_PREDICATES = 32  # of the optimized filter iterator: one bit a row


def generation_of(arch: Architecture) -> int:
    """Whose instructions kernels for `arch` use."""
    return max(generation for generation in GENERATIONS if generation <= (arch.capability or 0))


def dtypes_of(generation: int) -> tuple[str, ...]:
    """The dtypes that a generation computes with."""
    return ("f32", *(dtype for dtype, since in _TENSOR_OPS if since == generation))


@dataclass(frozen=True)
class Tile:
    """A threadblock tile made of warp tiles (m, n, k); warps whose k is half of the tile's slice it between them.

    alignment: elements of an access to the operands in global memory; vector: of one to the output.
    accumulator: "f32", "f16" or "s32".
    """

    generation: int
    dtype: str
    shape: Shape
    warp: Shape
    stages: int
    alignment: int
    vector: int
    accumulator: str

    @property
    def simt(self) -> bool:
        """Whether it is computed by the ordinary pipelines instead of tensor cores."""
        return self.dtype == "f32"

    @property
    def instruction(self) -> Shape:
        """The shape of the instruction."""
        return _FMA if self.simt else _TENSOR_OPS[self.dtype, self.generation]

    @property
    def warps(self) -> Shape:
        """Warps along m, n and k."""
        (m, n, k), (wm, wn, wk) = self.shape, self.warp
        return m // wm, n // wn, k // wk

    @property
    def threads(self) -> int:
        """Threads of a block."""
        m, n, k = self.warps
        return 32 * m * n * k

    @property
    def _lanes(self) -> tuple[int, int]:
        """Lanes of a warp along m and n, of a SIMT kernel."""
        lanes_m = 8 if self.stages == 2 and self.warp[0] > self.warp[1] else 4
        return lanes_m, 32 // lanes_m

    @property
    def load_elements(self) -> int:
        """Elements of the widest access to an operand."""
        return 1 if self.simt else _ACCESS_BITS // BITS[self.dtype]

    @property
    def accumulator_registers(self) -> int:
        """Registers of a thread that hold sums."""
        return self.warp[0] * self.warp[1] // (64 if self.accumulator == "f16" else 32)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: the larger of main loop and epilogue."""
        (m, n, k), (wm, wn, _), partitions = self.shape, self.warp, self.warps[2]
        skew = 0
        rows, padding = 8, 8
        if self.simt:
            lanes_m, lanes_n = self._lanes
            skew = 2 * (32 // k) if self.stages == 2 else 0
            rows, padding = lanes_m, 4 * min(4, wn // lanes_n) + 1
        elif self.generation == 70:
            rows, padding = 16, 4 if self.accumulator == "f16" else 2
        main_loop = self.stages * (m + n + skew) * k * BITS[self.dtype] // 8
        epilogue = m // wm * rows * partitions * (n + padding) * (2 if self.accumulator == "f16" else 4)
        return max(main_loop, epilogue)


def broken_rules(tile: Tile, arch: Architecture) -> Iterator[str]:
    """What a tile breaks, in an order in which each rule may rely on those before it."""
    if tile.generation != generation_of(arch):
        yield f"{arch.name} has the instructions of sm{generation_of(arch)}"
    elif tile.dtype not in dtypes_of(tile.generation):
        yield f"sm{tile.generation} does not compute in {tile.dtype}"
    else:
        rules = (_division(tile), _pipeline(tile), _simt(tile) if tile.simt else _tensor_op(tile), _both(tile, arch))
        yield from (why for some in rules for broken, why in some if broken)


def _division(tile: Tile) -> Iterator[tuple[bool, str]]:
    (m, n, k), (wm, wn, wk) = tile.shape, tile.warp
    divides = m % wm == 0 and n % wn == 0 and k in (wk, 2 * wk)
    yield not divides, "warp tiles do not divide the threadblock tile"
    yield tile.accumulator not in accumulators(tile.dtype), f"{tile.dtype} is not summed in {tile.accumulator}"


def accumulators(dtype: str) -> tuple[str, ...]:
    """What the products of a dtype can be summed in, the usual one first."""
    return {"f16": ("f32", "f16"), "s8": ("s32",)}.get(dtype, ("f32",))


def _pipeline(tile: Tile) -> Iterator[tuple[bool, str]]:
    """cp.async, which three stages and more are made of, exists from sm80 on and moves at least 4 bytes."""
    narrow = tile.alignment * BITS[tile.dtype] < 32
    yield tile.generation < 80 and tile.stages != 2, "two stages: there is no cp.async before sm80"
    yield tile.generation >= 80 and narrow and tile.stages != 2, "two stages: cp.async moves at least 4 bytes"
    plain = tile.generation >= 80 and not narrow and not tile.simt
    yield plain and tile.stages == 2, "at least three stages from sm80 on"
    yield tile.alignment > tile.load_elements, "accesses of at most 16 bytes"
    yield tile.vector * BITS[tile.dtype] > _ACCESS_BITS, "stores of at most 16 bytes"


def _tensor_op(tile: Tile) -> Iterator[tuple[bool, str]]:
    (m, n, k), (wm, wn, wk), (im, in_, ik) = tile.shape, tile.warp, tile.instruction
    yield wm % im > 0 or wn % in_ > 0, "the warp tile is not made of whole instructions"
    if tile.generation == 70:
        yield k != 32 or wk != 32 or wm % 32 > 0 or wn % 32 > 0, "sm70: tile_k 32, warps of multiples of 32x32"
        yield wm * wn == 64 * 64 and tile.threads < 128, "sm70: the accumulators would spill"
        yield tile.threads > 4 * min(m, n), "sm70: too many threads for the tile"
        yield not _stores_whole_tile(tile, rows=4, groups=4), "sm70: the epilogue's threads do not fit the tile"
        return
    yield wk // ik < 2 or wk // ik % 2 > 0, "warp_k must be an even multiple of the instruction's"
    lanes = k // tile.load_elements
    yield lanes < 2 or lanes > 32, "tile_k does not fit the threads' map"
    yield min(m, n) * k < tile.load_elements * tile.threads, "too many threads for the tile"
    yield not _stores_whole_tile(tile, rows=8, groups=1), "the epilogue's threads do not fit the tile"


def _simt(tile: Tile) -> Iterator[tuple[bool, str]]:
    (m, n, k), wk, lanes = tile.shape, tile.warp[2], tile._lanes
    yield tile.alignment != 1 or tile.vector != 1, "SIMT kernels access single elements"
    yield k not in ((8,) if tile.stages == 2 else (8, 16)), "SIMT: tile_k 8, or 16 with more than two stages"
    yield wk != k, "SIMT kernels do not slice K"
    yield tile.warp[0] // lanes[0] < 4 or tile.warp[1] // lanes[1] < 4, "SIMT: at least 4x4 sums a thread"
    yield min(m, n) * k < tile.threads, "too many threads for the tile"
    yield not _stores_whole_tile(tile, rows=1, groups=lanes[0]), "the epilogue's threads do not fit the tile"


def _both(tile: Tile, arch: Architecture) -> Iterator[tuple[bool, str]]:
    yield not 64 <= tile.threads <= 256, "64 to 256 threads"
    yield tile.warp[0] * tile.warp[1] > 64 * 64, "the accumulators would spill"
    yield tile.shared_bytes > arch.block_shared, "shared memory"


def filter_rows_fit(tile: Tile) -> bool:
    """Whether a thread's rows of the filter have a bit each in the optimized iterator's word."""
    return tile.shape[1] * tile.shape[2] // (tile.load_elements * tile.threads) < _PREDICATES


def _stores_whole_tile(tile: Tile, rows: int, groups: int) -> bool:
    """Whether the epilogue's map of threads covers the tile, each element once.

    rows, groups: consecutive rows, and groups of them, that a column of warps leaves in shared memory at a time.
    A map with lanes to spare compiles, and then covers some rows twice and misses others.
    """
    n, side = tile.shape[1], tile.warps[1] * tile.warps[2]
    warps_a_group = max(1, side // groups)
    width = n // tile.vector
    if rows <= warps_a_group:  # a warp stores one row
        return rows == warps_a_group and width >= 32
    rows_a_warp = rows // warps_a_group
    # Signed bytes go through CUTLASS's epilogue as the 32-bit sums that they are rounded from.
    wanted = _STORE_BITS // (tile.vector * max(16, BITS[tile.dtype] if tile.dtype != "s8" else 32))
    if wanted <= 32 and 32 // wanted > rows_a_warp:
        lanes, lane_rows = 32 // rows_a_warp, rows_a_warp
    else:
        lanes = min(width, 32, wanted)
        lane_rows = min(rows, 32 // lanes) if lanes else 0
    return 0 < lanes <= width and 0 < lane_rows <= rows_a_warp and lanes * lane_rows == 32


def wider(tile: Tile, vector: int) -> Tile:
    """The same tile with another output vector."""
    return replace(tile, vector=vector)
