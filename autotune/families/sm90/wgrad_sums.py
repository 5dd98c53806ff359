"""How blocks share the pixels of a weight gradient and add their sums: templates/sm90/wgrad/sums.cuh."""

from __future__ import annotations

from autotune.core import Architecture, ceil_div

MAX_SPLITS = 64
"""Most clusters that split a tile's pixels."""

_REDUCE_BYTES_A_CYCLE = 40  # of the sums that blocks exchange: an estimate for an H200, not fitted


def split_counts(parts: int, tiles: int, slices: int, arch: Architecture, peers: int = 1) -> list[int]:
    """Return the clusters a tile that fill the GPU once, and half as many.

    Args:
        parts: Parts of the pixels, of which each block has one at least.
        tiles: Tiles of the problem.
        slices: Blocks of a cluster that split a tile's pixels.
        arch: The architecture.
        peers: Tiles of a cluster.
    """
    most = min(parts // slices, MAX_SPLITS)
    fill = arch.processors_for(slices * peers) // (slices * tiles)
    return sorted({max(1, min(count, most)) for count in (fill, ceil_div(fill, 2))}, reverse=True)


def sum_bytes(rows: int, columns: int) -> int:
    """Return the shared memory of a tile's sums, which replace its operands at the end."""
    return rows * (columns + 8) * 4


def exchange_cycles(tile_bytes: int, slices: int, splits: int) -> float:
    """Estimate the cycles in which blocks add the sums of a tile, in clusters and then over clusters."""
    return tile_bytes * (1 + splits / slices * (splits > 1)) / _REDUCE_BYTES_A_CYCLE
