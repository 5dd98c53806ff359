"""Which tiles of CUTLASS 2.x compile: rules that mirror static assertions of its headers.

They also refuse what those let through although it spills, does not start or comes out wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from autotune.core import Architecture
from autotune.families.cutlass2.tiling import ACCESS_BITS, BITS, Tile, accumulators, dtypes_of, generation_of

_STORE_BITS = 2048  # what a row of a warp's threads stores at a time, where it can

Rules = Iterator[tuple[bool, str]]
"""Whether a rule is broken, and its words; in an order in which each may rely on those before it."""


@cache
def broken(tile: Tile, arch: Architecture) -> str | None:
    """The first rule that a tile breaks, or None."""
    return next(_broken_rules(tile, arch), None)


def _broken_rules(tile: Tile, arch: Architecture) -> Iterator[str]:
    if tile.generation != generation_of(arch):
        yield f"{arch.name} has the instructions of sm{generation_of(arch)}"
    elif tile.dtype not in dtypes_of(tile.generation):
        yield f"sm{tile.generation} does not compute in {tile.dtype}"
    else:
        yield from (why for is_broken, why in _rules(tile, arch) if is_broken)


def _rules(tile: Tile, arch: Architecture) -> Rules:
    yield from _division(tile)
    yield from _both(tile, arch)
    yield from _pipeline(tile)
    yield from _simt(tile) if tile.simt else _tensor_op(tile)


def _division(tile: Tile) -> Rules:
    (m, n, k), (wm, wn, wk) = tile.shape, tile.warp
    divides = m % wm == 0 and n % wn == 0 and k in (wk, 2 * wk)
    yield not divides, "warp tiles do not divide the threadblock tile"
    yield tile.accumulator not in accumulators(tile.dtype), f"{tile.dtype} is not summed in {tile.accumulator}"


def _both(tile: Tile, arch: Architecture) -> Rules:
    yield not 64 <= tile.threads <= 256, "64 to 256 threads"
    yield tile.shared_bytes > arch.block_shared, "shared memory"


def _pipeline(tile: Tile) -> Rules:
    """cp.async, which three stages and more are made of, exists from sm80 on and moves at least 4 bytes."""
    narrow = tile.alignment * BITS[tile.dtype] < 32
    yield tile.generation < 80 and tile.stages != 2, "two stages: there is no cp.async before sm80"
    yield tile.generation >= 80 and narrow and tile.stages != 2, "two stages: cp.async moves at least 4 bytes"
    plain = tile.generation >= 80 and not narrow and not tile.simt
    yield plain and tile.stages == 2, "at least three stages from sm80 on"
    yield tile.alignment > tile.load_elements, "accesses of at most 16 bytes"
    yield tile.vector * BITS[tile.dtype] > ACCESS_BITS, "stores of at most 16 bytes"


def _tensor_op(tile: Tile) -> Rules:
    (m, n, k), (wm, wn, wk), (im, in_, ik) = tile.shape, tile.warp, tile.instruction
    yield wm % im > 0 or wn % in_ > 0, "the warp tile is not made of whole instructions"
    # They compile, but the warps' loads from shared memory then go beyond the tile.
    narrow = [extent < 32 and not major for extent, major in zip((wm, wn), tile.k_major, strict=True)]
    yield any(narrow), "warp tiles of at least 32 along an operand that is not K-major"
    if tile.generation == 70:
        yield k != 32 or wk != 32 or wm % 32 > 0 or wn % 32 > 0, "sm70: tile_k 32, warps of multiples of 32x32"
        yield wm * wn == 64 * 64 and tile.threads < 128, "sm70: the accumulators would spill"
    else:
        yield wk // ik < 2 or wk // ik % 2 > 0, "warp_k must be an even multiple of the instruction's"
    loads = _loads(tile, m, tile.k_major[0]) and _loads(tile, n, tile.k_major[1])
    yield not loads, "the threads do not fit an operand's tile"
    rows, groups = (4, 4) if tile.generation == 70 else (8, 1)
    yield not _stores_whole_tile(tile, rows, groups), "the epilogue's threads do not fit the tile"


def _simt(tile: Tile) -> Rules:
    (m, n, k), wk, lanes = tile.shape, tile.warp[2], tile.lanes
    yield tile.alignment != 1 or tile.vector != 1, "SIMT kernels access single elements"
    yield k not in ((8,) if tile.stages == 2 else (8, 16)), "SIMT: tile_k 8, or 16 with more than two stages"
    yield wk != k, "SIMT kernels do not slice K"
    yield tile.warp[0] // lanes[0] < 4 or tile.warp[1] // lanes[1] < 4, "SIMT: at least 4x4 sums a thread"
    yield min(m, n) * k < tile.threads, "the threads do not fit an operand's tile"
    yield not _stores_whole_tile(tile, rows=1, groups=lanes[0]), "the epilogue's threads do not fit the tile"


def _loads(tile: Tile, extent: int, k_major: bool) -> bool:
    """Whether the threads that load a tile of an operand fit it; extent: m or n."""
    along, across = (tile.shape[2], extent) if k_major else (extent, tile.shape[2])
    columns, warps = along // tile.load_elements, tile.threads // 32
    lanes = columns if k_major else 8 if tile.generation == 70 else min(8, columns)
    if not 2 <= lanes <= 32 or columns % lanes or across % (32 // lanes):
        return False
    wide, high = columns // lanes, across // (32 // lanes)
    return wide // max(1, warps // high) > 0


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
