"""The launch values of sm90_conv2d that are worth timing."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.core import MAX_PROCESSORS, Architecture, ceil_div, round_up
from autotune.families import se_gate
from autotune.families.base import Config, Launch, Parameter
from autotune.families.sm90.conv2d_loads import (
    Conv,
    Loading,
    Solved,
    blocks_needed,
    convolution_of,
    fill_slot,
    group_channels,
    loadings,
    slots_in,
)
from autotune.families.sm90.conv2d_shape import ROW_BYTES, SHARED_OVERHEAD, Conv2dShape, max_shared_bytes
from autotune.ir import DTYPES
from autotune.ir.operators import Conv2dSe, Conv2dSeSkip, FoldedSe

_AHEAD = (4, 8)  # pieces of an added tensor that each warp can load ahead

LAUNCH_PARAMETERS = (
    Parameter("fill_slots", tuple(range(1, 13)), "buffers of activations"),
    Parameter("weight_slots", tuple(range(13)), "buffers of weights where they have a ring of their own"),
    Parameter("grid", tuple(range(4 * MAX_PROCESSORS + 1)), "most blocks: 0 gives each tile a block of its own"),
    Parameter("raster", (0, 1), "1: blocks that follow each other share weights instead of pixels"),
    Parameter("squares_h", (0, 1, 2, 3, 4), "patch: squares of 8 x 8 pixels in a tile, down"),
    Parameter("squares_w", (0, 1, 2, 3, 4), "patch: across"),
    Parameter("images", (0, 1, 2, 3, 4), "patch: and over images"),
    Parameter(
        "staged",
        (0, 1, *_AHEAD),
        "0: direct stores; 1: TMA stores from shared memory; n > 1: TMA also loads an added tensor, n pieces ahead",
    ),
)


def timed_launches(problem: Solved, config: Config, arch: Architecture) -> list[Launch]:
    """Return the launch values worth timing: for each way to load, the occupancies, stagings and rasters that fit."""
    x = Conv2dShape.from_config(config, problem.dtype)
    conv = convolution_of(problem, x.merge)
    if not columns_fit(conv, x.n, x.cluster_n) or not steps_fit(conv, x.k):
        return []
    result: list[Launch] = []
    for loading in loadings(conv, x):
        if not _is_sensible(conv, x, loading, arch):
            continue
        for resident in _occupancies(conv, x, loading, arch):
            grid = _grid(conv, x, loading, resident, arch)
            for staged in _stagings(conv, x):
                slots = _slots_that_fit(conv, x, loading, resident, grid, staged, arch)
                if slots:
                    rasters = _rasters(conv, x, loading, grid, staged)
                    result += [_launch(loading, slots, grid, raster, staged) for raster in rasters]
    return [launch for i, launch in enumerate(result) if launch not in result[:i]]


def _is_sensible(problem: Conv, x: Conv2dShape, loading: Loading, arch: Architecture) -> bool:
    """Return whether a loading fits the gate, fills clusters, and is split only where tiles do not fill the machine."""
    if isinstance(problem, Conv2dSe | FoldedSe) and not _gate_fits(problem, x, loading):
        return False
    if loading.tiles_m < x.cluster_m or x.slices > loading.fills:
        return False
    return x.slices == 1 or blocks_needed(problem, x, loading) <= 2 * arch.processors_for(x.cluster)


def _occupancies(problem: Conv, x: Conv2dShape, loading: Loading, arch: Architecture) -> Iterator[int]:
    """Yield the numbers of blocks of an SM that are worth timing.

    Two are tried even if there are not enough tiles: with half of the memory free, a block of the next kernel can start
    while this one ends.
    """
    blocks, processors = blocks_needed(problem, x, loading), arch.processors_for(x.cluster)
    for resident in range(1, x.blocks_by_registers(arch) + 1):
        if resident <= 2 or blocks > processors * (resident - 1):
            yield resident


def _grid(problem: Conv, x: Conv2dShape, loading: Loading, resident: int, arch: Architecture) -> int:
    """Return the most blocks of the launch; 0 if each tile has its own."""
    room = arch.processors_for(x.cluster) * resident
    own_block = isinstance(problem, Conv2dSe) or x.slices > 1 or blocks_needed(problem, x, loading) <= room
    return 0 if own_block else room


def _stagings(problem: Conv, x: Conv2dShape) -> tuple[int, ...]:
    """Return the values of `staged`."""
    if x.slices > 1 or isinstance(problem, Conv2dSe):
        return (0,)
    added = [argument for argument in problem.epilogue.arguments if argument.kind == "tensor"]
    return (0, 1, *_AHEAD) if len(added) == 1 else (0, 1)


def _slots_that_fit(
    problem: Conv, x: Conv2dShape, loading: Loading, resident: int, grid: int, staged: int, arch: Architecture
) -> tuple[int, int] | None:
    """Return the buffers of activations and of weights, or None if too few fit shared memory."""
    room = min(arch.sm_shared // resident - arch.reserved_shared - SHARED_OVERHEAD, max_shared_bytes(arch))
    room -= x.staging_bytes(staged) + _gate_bytes(problem, x)
    skips, tiles = _skip_fills(problem, x), _tiles_a_block(problem, x, loading, grid)
    slots = slots_in(room, problem, x, loading, tiles * (loading.fills + skips))
    if slots is None or (skips and slots[0] <= skips):
        return None
    exchange_fits = x.exchanged_bytes <= slots[0] * (fill_slot(loading) + x.weight_bytes)
    return slots if exchange_fits else None


def _rasters(problem: Conv, x: Conv2dShape, loading: Loading, grid: int, staged: int) -> tuple[int, ...]:
    """Return the values of `raster`: both where a block has several tiles, and these several columns."""
    tiles_n, tiles = ceil_div(problem.k, x.n), _tiles_a_block(problem, x, loading, grid)
    return (0, 1) if tiles_n > x.cluster_n and tiles > 1 and not x.resident and staged else (0,)


def _tiles_a_block(problem: Conv, x: Conv2dShape, loading: Loading, grid: int) -> int:
    return ceil_div(blocks_needed(problem, x, loading), grid) if grid else 1


def _launch(loading: Loading, slots: tuple[int, int], grid: int, raster: int, staged: int) -> Launch:
    fill_slots, weight_slots = slots
    squares_h, squares_w, images = loading.squares
    return {
        "fill_slots": fill_slots,
        "weight_slots": weight_slots,
        "grid": grid,
        "raster": raster,
        "squares_h": squares_h,
        "squares_w": squares_w,
        "images": images,
        "staged": staged,
    }


def _skip_fills(problem: Conv, x: Conv2dShape) -> int:
    """Return the loads of a skip connection's projection: all are in shared memory until the sums are scaled."""
    return ceil_div(problem.skip_c, problem.skip_groups * x.k) if isinstance(problem, Conv2dSeSkip) else 0


def columns_fit(problem: Conv, tile_n: int, cluster_n: int = 1) -> bool:
    """Return whether a cluster's columns of tiles are at least half full and within one group."""
    if problem.groups > 1:
        return problem.k // problem.groups % (tile_n * cluster_n) == 0
    padded = round_up(problem.k, 32)  # weights are padded to multiples of 32 channels
    return tile_n < 2 * padded and ceil_div(problem.k, tile_n) >= cluster_n


def steps_fit(problem: Conv, step: int) -> bool:
    """Return whether steps of this many channels fill up with the problem's, within one group."""
    channels = group_channels(problem)
    steps = [row // DTYPES[problem.dtype].itemsize for row in ROW_BYTES]
    if problem.groups > 1:  # a step must not reach into the next group
        return step == next((k for k in reversed(steps) if channels % k == 0), 0)
    widest = steps[-1]
    least = next((k for k in steps if channels <= k), widest)
    return step == least or (step < least and channels < 1.5 * widest and channels % widest > 0)


def _gate_bytes(problem: Conv, x: Conv2dShape) -> int:
    if isinstance(problem, FoldedSe):
        a_team = se_gate.folded_shared_bytes(rows=x.m, columns=x.n, hidden=x.hidden, warps=4 * x.team)
        return a_team * (x.groups // x.team)
    if not isinstance(problem, Conv2dSe):
        return 0
    return se_gate.shared_bytes(
        rows=x.m,
        columns=x.n // x.slices,
        pixels=problem.p * problem.q,
        hidden=problem.hidden,
        peers=x.cluster_n * x.slices,
    )


def _gate_fits(problem: Conv2dSe | FoldedSe, x: Conv2dShape, loading: Loading) -> bool:
    """Return whether a tile is whole images and, where the gate needs them, a cluster has all of their channels."""
    h, w, _ = loading.squares
    whole = not x.patch or (problem.p, problem.q) == (8 * h, 8 * w)
    whole = whole and x.m % (problem.p * problem.q) == 0
    if isinstance(problem, Conv2dSeSkip) and problem.skip_groups > 1:
        whole = whole and problem.k // problem.skip_groups % (x.n * x.cluster_n) == 0
    return whole and (isinstance(problem, FoldedSe) or ceil_div(problem.k, x.n) == x.cluster_n)
