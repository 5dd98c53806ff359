"""Rules of CUTLASS 2.x tiles that mirror static assertions of its headers.

They also refuse tiles that pass the assertions but spill registers, do not start, or give wrong results.
"""

from __future__ import annotations

from functools import cache

from autotune.core import Architecture
from autotune.families.base import Rules, first_unmet, require
from autotune.families.cutlass2.tile import ACCESS_BITS, BITS, ThreadblockTile, accumulators, dtypes_of, generation_of

_STORE_BITS = 2048  # that the threads of a warp store of one row at a time, if the row is as long


@cache
def why_illegal(tile: ThreadblockTile, arch: Architecture) -> str | None:
    """Return the first requirement that a tile does not meet on an architecture, or None if it compiles."""
    return (
        require(
            tile.generation == generation_of(arch), f"generation must be {generation_of(arch)}, that of {arch.name}"
        )
        or require(tile.dtype in dtypes_of(tile.generation), f"sm{tile.generation} does not compute in {tile.dtype}")
        or first_unmet(_tile_rules(tile, arch))
    )


def _tile_rules(tile: ThreadblockTile, arch: Architecture) -> Rules:
    yield from _division_rules(tile)
    yield from _resource_rules(tile, arch)
    yield from _pipeline_rules(tile)
    yield from _simt_rules(tile) if tile.simt else _tensor_op_rules(tile)


def _division_rules(tile: ThreadblockTile) -> Rules:
    (m, n, k), (wm, wn, wk) = tile.shape, tile.warp
    yield require(
        m % wm == 0 and n % wn == 0 and k in (wk, 2 * wk),
        "warp_m and warp_n must divide tile_m and tile_n, and warp_k must be tile_k or half of it",
    )
    yield require(tile.accumulator in accumulators(tile.dtype), f"{tile.dtype} is not summed in {tile.accumulator}")


def _resource_rules(tile: ThreadblockTile, arch: Architecture) -> Rules:
    yield require(64 <= tile.threads <= 256, "a block must have 64 to 256 threads")
    yield require(tile.shared_bytes <= arch.block_shared, "the tile must fit a block's shared memory")


def _pipeline_rules(tile: ThreadblockTile) -> Rules:
    """Three and more stages use cp.async, which exists from sm80 on and moves at least 4 bytes."""
    narrow = tile.alignment * BITS[tile.dtype] < 32
    two = tile.stages == 2
    yield require(tile.generation >= 80 or two, "stages must be 2 before sm80, which has cp.async first")
    yield require(
        tile.generation < 80 or not narrow or two,
        "stages must be 2 for narrow accesses: cp.async moves at least 4 bytes",
    )
    pipelined = tile.generation >= 80 and not narrow and not tile.simt
    yield require(not pipelined or not two, "stages must be at least 3 from sm80 on")
    yield require(tile.alignment <= tile.load_elements, "alignment must be at most 16 bytes, or 1 for f32")
    yield require(tile.vector * BITS[tile.dtype] <= ACCESS_BITS, "vector must be at most 16 bytes")


def _tensor_op_rules(tile: ThreadblockTile) -> Rules:
    (m, n, k), (wm, wn, wk), (im, in_, ik) = tile.shape, tile.warp, tile.instruction
    yield require(wm % im == 0 and wn % in_ == 0, "the warp tile must consist of whole instructions")
    # Narrower ones compile, but the warps' loads from shared memory then go beyond the tile.
    wide = [extent >= 32 or major for extent, major in zip((wm, wn), tile.k_major, strict=True)]
    yield require(all(wide), "warp tiles must be at least 32 along an operand that is not K-major")
    if tile.generation == 70:
        yield require(
            k == 32 and wk == 32 and wm % 32 == 0 and wn % 32 == 0,
            "sm70: tile_k and warp_k must be 32, warp_m and warp_n multiples of 32",
        )
        yield require(
            wm * wn != 64 * 64 or tile.threads >= 128,
            "sm70: a block with warp tiles of 64x64 must have 4 warps, or spills",
        )
    else:
        yield require(wk // ik >= 2 and wk // ik % 2 == 0, "warp_k must be an even multiple of the instruction's k")
    loads = _loads_whole_tile(tile, m, tile.k_major[0]) and _loads_whole_tile(tile, n, tile.k_major[1])
    yield require(loads, "the block's threads must load whole tiles of both operands")
    rows, groups = (4, 4) if tile.generation == 70 else (8, 1)
    yield require(
        _stores_whole_tile(tile, rows, groups), "the epilogue's threads must cover the tile, each element once"
    )


def _simt_rules(tile: ThreadblockTile) -> Rules:
    (m, n, k), wk, lanes = tile.shape, tile.warp[2], tile.lanes
    yield require(tile.alignment == 1 and tile.vector == 1, "SIMT: alignment and vector must be 1")
    yield require(
        k in ((8,) if tile.stages == 2 else (8, 16)), "SIMT: tile_k must be 8, or 16 with more than two stages"
    )
    yield require(wk == k, "SIMT: warp_k must be tile_k")
    yield require(
        tile.warp[0] // lanes[0] >= 4 and tile.warp[1] // lanes[1] >= 4, "SIMT: a thread must have at least 4x4 sums"
    )
    yield require(min(m, n) * k >= tile.threads, "SIMT: the block's threads must load whole tiles of both operands")
    yield require(
        _stores_whole_tile(tile, rows=1, groups=lanes[0]),
        "the epilogue's threads must cover the tile, each element once",
    )


def _loads_whole_tile(tile: ThreadblockTile, extent: int, k_major: bool) -> bool:
    """Return whether the block's threads load a whole tile of an operand; extent: its m or n."""
    along, across = (tile.shape[2], extent) if k_major else (extent, tile.shape[2])
    columns, warps = along // tile.load_elements, tile.threads // 32
    lanes = columns if k_major else 8 if tile.generation == 70 else min(8, columns)
    if not 2 <= lanes <= 32 or columns % lanes or across % (32 // lanes):
        return False
    wide, high = columns // lanes, across // (32 // lanes)
    return wide // max(1, warps // high) > 0


def _stores_whole_tile(tile: ThreadblockTile, rows: int, groups: int) -> bool:
    """Return whether the epilogue's map of threads covers the tile, each element once.

    A map with more lanes than a row needs compiles, but covers some rows twice and misses others.

    Args:
        tile: The tile.
        rows: Consecutive rows that a column of warps writes to shared memory at a time.
        groups: Groups of such rows.
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
