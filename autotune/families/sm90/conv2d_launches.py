"""The launch values of sm90_conv2d that are worth timing."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.core import MOST_PROCESSORS, Architecture, ceil_div, round_up
from autotune.families import se_gate
from autotune.families.base import Config, Launch, Parameter
from autotune.families.sm90.conv2d_loads import (
    Loading,
    Solved,
    blocks_needed,
    convolution_of,
    fill_slot,
    group_channels,
    loadings,
    slots_in,
)
from autotune.families.sm90.conv2d_shape import MOST_SHARED, SHARED_OVERHEAD, Shape, shape_of
from autotune.ir import Conv2dSe, Conv2dSeSkip, FoldedSe, Problem

_AHEAD = (4, 8)  # pieces of an added tensor that each warp may have on their way

LAUNCH_PARAMETERS = (
    Parameter("fill_slots", tuple(range(1, 13)), "buffers of activations"),
    Parameter("weight_slots", tuple(range(13)), "buffers of weights where they have a ring of their own"),
    Parameter("grid", tuple(range(4 * MOST_PROCESSORS + 1)), "most blocks: 0 gives each tile a block of its own"),
    Parameter("raster", (0, 1), "1: blocks that follow each other share weights instead of pixels"),
    Parameter("squares_h", (0, 1, 2, 3, 4), "patch: squares of 8 x 8 pixels in a tile, down"),
    Parameter("squares_w", (0, 1, 2, 3, 4), "patch: across"),
    Parameter("images", (0, 1, 2, 3, 4), "patch: and over images"),
    Parameter(
        "staged",
        (0, 1, *_AHEAD),
        "1: the output leaves through shared memory, by TMA; more: an added tensor comes so too, so many pieces ahead",
    ),
)


def launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    """Family.launches."""
    x = shape_of(config)
    conv = convolution_of(problem, x.merge)
    if not columns_fit(conv, x.n, x.cluster_n) or not steps_well(conv, x.k):
        return []
    result = [launch for loading in loadings(conv, x) for launch in _of_loading(conv, x, loading, arch)]
    return [launch for i, launch in enumerate(result) if launch not in result[:i]]


def _of_loading(problem: Solved, x: Shape, loading: Loading, arch: Architecture) -> Iterator[Launch]:
    gated = isinstance(problem, Conv2dSe)
    if isinstance(problem, Conv2dSe | FoldedSe) and not _gate_fits(problem, x, loading):
        return
    tiles_n, blocks = ceil_div(problem.k, x.n), blocks_needed(problem, x, loading)
    processors = arch.processors_for(x.cluster)
    if loading.tiles_m < x.cluster_m or x.slices > loading.fills or (x.slices > 1 and blocks > 2 * processors):
        return
    for resident in range(1, x.blocks_by_registers + 1):
        # Beside half the memory a block of the next kernel finds room while this one ends.
        if resident > 2 and blocks <= processors * (resident - 1):
            continue
        own = gated or x.slices > 1 or blocks <= processors * resident
        limit = 0 if own else processors * resident
        tiles = ceil_div(blocks, limit) if limit else 1
        for staged in _stagings(problem, x):
            room = min(arch.sm_shared // resident - arch.reserved_shared - SHARED_OVERHEAD, MOST_SHARED)
            room -= x.staging_bytes(staged) + _gate_bytes(problem, x)
            skips = _skip_fills(problem, x)
            slots = slots_in(room, problem, x, loading, tiles * (loading.fills + skips))
            if slots is None or (skips and slots[0] <= skips):
                continue
            if x.exchanged_bytes > slots[0] * (fill_slot(loading) + x.weight_bytes):
                continue  # the others' sums find no room
            rasters = (0, 1) if tiles_n > x.cluster_n and tiles > 1 and not x.resident and staged else (0,)
            yield from (_launch(loading, slots, limit, raster, staged) for raster in rasters)


def _stagings(problem: Solved, x: Shape) -> tuple[int, ...]:
    """Values of `staged`."""
    if x.slices > 1 or isinstance(problem, Conv2dSe):
        return (0,)
    added = [argument for argument in problem.epilogue.arguments if argument.kind == "tensor"]
    return (0, 1, *_AHEAD) if len(added) == 1 else (0, 1)


def _launch(loading: Loading, slots: tuple[int, int], limit: int, raster: int, staged: int) -> Launch:
    h, w, images = loading.squares
    names = [parameter.name for parameter in LAUNCH_PARAMETERS]
    return dict(zip(names, (*slots, limit, raster, h, w, images, staged), strict=True))


def _skip_fills(problem: Solved, x: Shape) -> int:
    """Of a projection in the skip connection: all of them are there at once, until the sums are scaled."""
    return ceil_div(problem.skip_c // problem.skip_groups, x.k) if isinstance(problem, Conv2dSeSkip) else 0


def columns_fit(problem: Solved, tile_n: int, cluster_n: int = 1) -> bool:
    """Whether a cluster's columns of tiles are not half empty, nor reach from one group into another."""
    if problem.groups > 1:
        return problem.k // problem.groups % (tile_n * cluster_n) == 0
    padded = round_up(problem.k, 32)  # with the channels that fill up the weights
    return tile_n < 2 * padded and ceil_div(problem.k, tile_n) >= cluster_n


def steps_well(problem: Solved, step: int) -> bool:
    """Whether a step of so many channels goes well into the problem's."""
    channels = group_channels(problem)
    if problem.groups > 1:  # a step must not reach into the next group
        return step == next(k for k in (64, 32, 16) if channels % k == 0)
    least = next((k for k in (16, 32, 64) if channels <= k), 64)
    return step == least or (step < least and channels < 96 and channels % 64 > 0)


def _gate_bytes(problem: Solved, x: Shape) -> int:
    if isinstance(problem, FoldedSe):
        return se_gate.folded_bytes(x.m, x.n, x.hidden, 4 * x.team) * (x.groups // x.team)
    if not isinstance(problem, Conv2dSe):
        return 0
    pixels, peers = problem.p * problem.q, x.cluster_n * x.slices
    return se_gate.shared_bytes(x.m, x.n // x.slices, pixels, problem.hidden, peers)


def _gate_fits(problem: Conv2dSe | FoldedSe, x: Shape, loading: Loading) -> bool:
    """Whether a tile is whole images, and a cluster has all of their channels if it must."""
    h, w, _ = loading.squares
    whole = not x.patch or (problem.p, problem.q) == (8 * h, 8 * w)
    whole = whole and x.m % (problem.p * problem.q) == 0
    if isinstance(problem, Conv2dSeSkip) and problem.skip_groups > 1:
        whole = whole and problem.k // problem.skip_groups % (x.n * x.cluster_n) == 0
    return whole and (isinstance(problem, FoldedSe) or ceil_div(problem.k, x.n) == x.cluster_n)
