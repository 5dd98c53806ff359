"""Loads of sm90_conv2d: how activations and weights reach shared memory, in how many buffers, for how many tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.core import ceil_div, round_up
from autotune.families.sm90.conv2d_shape import ROW_BYTES, Conv2dShape
from autotune.ir import DTYPES
from autotune.ir.operators import (
    Conv2d,
    Conv2dBroadcast,
    Conv2dGradientSums,
    Conv2dSe,
    Conv2dStatistics,
    FoldedSe,
    Gemm,
)

Conv = Conv2d | Conv2dBroadcast | Conv2dSe | Conv2dStatistics | Conv2dGradientSums | FoldedSe
"""A problem as a convolution."""
Solved = Conv | Gemm
"""The problems of the families of sm90/conv2d.cu.j2."""

MERGED = (1, 2, 4, 8, 16)
"""Groups that may be computed as one."""
_MAX_BOX = 256  # extent of a box: CUDA Driver API, cuTensorMapEncodeTiled
_SLOT_OVERHEAD = 16  # bytes of barriers


def group_channels(problem: Conv) -> int:
    """Return the input channels of a group."""
    return problem.c // problem.groups


def convolution_of(problem: Solved, merge: int = 1) -> Conv:
    """Return the convolution that a kernel computes, with each `merge` groups as one."""
    conv = problem.as_conv2d if isinstance(problem, Gemm) else problem
    return replace(conv, groups=conv.groups // merge) if merge > 1 else conv


def merges(problem: Conv) -> list[int]:
    """Return how many groups can be computed as one: steps and columns of tiles must be filled, up to 128 bytes."""
    if problem.groups == 1:
        return [1]
    ins, outs = group_channels(problem), problem.k // problem.groups
    least, widest = (row // DTYPES[problem.dtype].itemsize for row in (ROW_BYTES[0], ROW_BYTES[-1]))
    fitting = [m for m in MERGED if problem.groups % m == 0 and m * ins % least == 0 and m * outs % 32 == 0]
    return [m for m in fitting if m == 1 or m * ins <= widest]


@dataclass(frozen=True)
class Loading:
    """How a tile's activations are loaded.

    Attributes:
        squares: Squares of 8 x 8 pixels of a patch: (down, across, over images); (0, 0, 0) with im2col.
        fill_bytes: Bytes of one buffer's load.
        fills: Loads of buffers for each tile.
        tiles_m: Tiles of M.
    """

    squares: tuple[int, int, int]
    fill_bytes: int
    fills: int
    tiles_m: int


def loadings(problem: Conv, x: Conv2dShape) -> list[Loading]:
    """Return the loadings worth trying, the best first."""
    chunks, pixels = ceil_div(group_channels(problem), x.k), problem.n * problem.p * problem.q
    if not x.patch:
        return [
            Loading(
                squares=(0, 0, 0),
                fill_bytes=x.m * x.row_bytes,
                fills=problem.r * problem.s * chunks,
                tiles_m=ceil_div(pixels, x.m),
            )
        ]
    if problem.is_pointwise or any(s > 1 and d > 1 for s, d in zip(problem.stride, problem.dilation, strict=True)):
        return []
    found = []
    axes = list(zip((problem.r, problem.s), problem.stride, problem.dilation, strict=True))
    phases = min(problem.r, problem.stride[0]) * min(problem.s, problem.stride[1])
    halo_h, halo_w = ((ceil_div(extent, min(extent, stride)) - 1) * dilation for extent, stride, dilation in axes)
    for h, w, images in _squares(x.m // 64):
        patch_h, patch_w = 8 * h + halo_h, 8 * w + halo_w
        if max((patch_h - 1) * problem.stride[0], (patch_w - 1) * problem.stride[1]) >= _MAX_BOX - 1:
            continue
        tiles = ceil_div(problem.n, images) * ceil_div(problem.p, 8 * h) * ceil_div(problem.q, 8 * w)
        if tiles * x.m <= 1.5 * pixels:
            found.append(
                Loading(
                    squares=(h, w, images),
                    fill_bytes=images * patch_h * patch_w * x.row_bytes,
                    fills=phases * chunks,
                    tiles_m=tiles,
                )
            )
    return sorted(found, key=lambda one: (one.tiles_m, one.fill_bytes))[:2]


def _squares(count: int) -> list[tuple[int, int, int]]:
    """Return the arrangements of a number of squares: (down, across, over images)."""
    sides = [(h, w) for h in range(1, count + 1) for w in range(1, count // h + 1) if count % (h * w) == 0]
    return [(h, w, count // (h * w)) for h, w in sides]


def products_a_tile(problem: Conv, x: Conv2dShape) -> int:
    """Return the products of tile_k channels of a tile."""
    return problem.r * problem.s * ceil_div(group_channels(problem), x.k)


def fill_slot(loading: Loading) -> int:
    """Return the bytes of a buffer of activations, aligned to 1024."""
    return round_up(loading.fill_bytes, 1024)


def slots_in(room: int, problem: Conv, x: Conv2dShape, loading: Loading, fills_a_block: int) -> tuple[int, int] | None:
    """Return the buffers of activations and of weights that fit shared memory, and are of use.

    Args:
        room: Bytes of shared memory for both.
        problem: The convolution.
        x: The kernel's shape.
        loading: How activations are loaded.
        fills_a_block: Loads of activations of all tiles of a block.

    Returns:
        (buffers of activations, buffers of weights if they have their own ring, else 0); None if too few fit.
    """
    fill, weight = fill_slot(loading) + _SLOT_OVERHEAD, x.weight_bytes + _SLOT_OVERHEAD
    products = products_a_tile(problem, x)
    if x.resident:
        fills = min((room - products * weight) // fill, 8, max(2, fills_a_block))
        return (fills, 0) if fills >= (1 if x.patch and loading.fills == 1 else 2) else None
    if not x.patch:
        stages = min(room // (fill + weight), 12, max(2, fills_a_block))
        return (stages, 0) if stages >= 2 else None
    fills = 2 if room - 2 * fill >= 3 * weight else 1
    weights = min((room - fills * fill) // weight, 12, fills_a_block * products // loading.fills)
    return (fills, weights) if weights >= 3 else None


def blocks_needed(problem: Conv, x: Conv2dShape, loading: Loading) -> int:
    """Return the blocks that give each tile its own, in whole clusters."""
    tiles_n = ceil_div(problem.k, x.n)
    return ceil_div(loading.tiles_m, x.cluster_m) * ceil_div(tiles_n, x.cluster_n) * x.cluster
