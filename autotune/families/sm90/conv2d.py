"""Forward convolution for Hopper: persistent, warp-specialised, TMA and wgmma; fp16 and bf16 with float32 sums, NHWC.

The GEMM is M = n*p*q, N = k, K = r*s*c; a linear layer is one of images of one pixel. See
templates/sm90/conv2d/conv2d.cuh for how it works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from autotune.core import Architecture, ceil_div
from autotune.families import se_gate
from autotune.families.base import DEVICE_IMAGE, Config, Family, Parameter, Value
from autotune.families.sm90.conv2d_launches import LAUNCH_PARAMETERS, columns_fit, launches, steps_well
from autotune.families.sm90.conv2d_loads import (
    MERGED,
    Solved,
    blocks_needed,
    convolution_of,
    loadings,
    merges,
    products_a_tile,
)
from autotune.families.sm90.conv2d_shape import legal, shape_of
from autotune.ir import MAP_ELEMENTS, Conv2d, Conv2dSe, FoldedSe, Gemm, Problem

_MOST_CORNER, _MOST_OFFSET = 128, 255  # of TMA's im2col

_WELL: dict[str, Callable[[Solved, int], bool]] = {"tile_n": columns_fit, "tile_k": steps_well}
"""Whether a value of these goes well into a convolution."""

# For the cost: a multiprocessor's rates a cycle.
_PRODUCTS_A_CYCLE = 2048
_READ_BYTES_A_CYCLE = 80  # from L2: what is shared by multicast is read once
_COMING_BYTES_A_CYCLE = 70  # into shared memory, from whoever has read them


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    """What can be legal beside the values chosen so far, and is no waste for the problem."""
    shares = chosen.get("activations") != "patch" and chosen.get("weights") != "resident"
    only_first = {
        "schedule": chosen.get("groups") != 2,
        "cluster_n": not shares,
        "slices": not shares or chosen.get("schedule") != "cooperative",
    }
    match parameter.name:
        case "merge":  # another number compiles no differently
            return merges(convolution_of(problem)) if problem else (1,)
        case "tile_n" | "tile_k" if problem:
            conv, well = convolution_of(problem, int(chosen["merge"])), _WELL[parameter.name]
            return [value for value in parameter.values if well(conv, int(value))]
    return parameter.values[:1] if only_first.get(parameter.name) else parameter.values


def _supports(problem: Problem) -> str | None:
    return next((why for beyond, why in _limits(convolution_of(problem)) if beyond), None)


def _limits(problem: Solved) -> Iterator[tuple[bool, str]]:
    yield not merges(problem), "the channels of some groups together must be multiples of 16, and those out of 32"
    yield problem.c % 8 > 0 or problem.k % 8 > 0, "c and k must be multiples of 8"
    reach = [d * (extent - 1) for d, extent in zip(problem.dilation, (problem.r, problem.s), strict=True)]
    corner = max(*problem.pad, max(reach) - min(problem.pad))
    yield max(reach) > _MOST_OFFSET or corner > _MOST_CORNER, "filters that reach further than TMA can"
    yield max(problem.stride) > 8, "strides up to 8"
    yield problem.n * problem.p * problem.q >= 2**31, "tensors of up to 2^31 pixels"
    if isinstance(problem, Conv2dSe | FoldedSe):
        yield from se_gate.limits(problem)


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    merge = int(config.get("merge", 1))
    return None if merge in merges(convolution_of(problem)) else f"it computes {merge} groups as one"


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: rounds of tiles, each bound by products or by loads.

    Its constants are fitted to 1775 kernels timed on 23 layers of ResNets on an H200, and to what won on awkward ones.
    """
    x = shape_of(config)
    problem = convolution_of(problem, x.merge)
    processors, products, best = arch.processors_for(x.cluster), products_a_tile(problem, x), float("inf")
    for loading in loadings(problem, x):
        rounds = ceil_div(blocks_needed(problem, x, loading), processors)
        buffers = 2 * (loading.fill_bytes + x.weight_bytes) + x.staging_bytes(1)
        beside = max(1, min(x.blocks_by_registers, rounds, arch.sm_shared // buffers)) * (2 if x.pingpong else 1)
        # Of resident weights nobody waits for the next.
        waits = 80 * loading.fills + (40 if x.patch and x.resident else 150) * (products - loading.fills)
        arithmetic = products * x.m * max(x.columns, 24) * x.k / _PRODUCTS_A_CYCLE + waits / beside
        pixels = loading.fills * loading.fill_bytes
        weights = products * x.weight_bytes / (rounds if x.resident else 1)
        read = (pixels / x.cluster_n + weights / x.cluster_m) / _READ_BYTES_A_CYCLE
        loads = max(read, (pixels + weights) / _COMING_BYTES_A_CYCLE)
        epilogue = x.m * x.n / 4
        ends = 2000 + 15 * x.m + (500 if x.slices > 1 else 0)
        best = min(best, rounds * (max(arithmetic, loads) / x.slices + epilogue) + ends)
    return best


def _label(config: Config) -> str:
    x = shape_of(config)
    extras = [
        f" {x.groups}wg" if not x.pingpong else " pingpong",
        " patch" if x.patch else "",
        " resident" if x.resident else "",
        f" c{x.cluster_m}x{x.cluster_n}" if x.cluster_m * x.cluster_n > 1 else "",
        f" split{x.slices}" if x.slices > 1 else "",
        f" merge{x.merge}" if x.merge > 1 else "",
    ]
    return f"{x.m}x{x.n}x{x.k}{''.join(extras)}"


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    x = shape_of(config)
    return {
        **config,
        "hidden": x.hidden,
        "image": config.get("image"),
        "type": dtype,
        "map_element": MAP_ELEMENTS[dtype],
        "resident_blocks": x.blocks_by_registers,
        "many_sums": x.many_sums,
    }


FAMILY = Family(
    name="sm90_conv2d",
    operator=(Conv2d, Conv2dSe, Gemm),
    kind=DEVICE_IMAGE,
    template="sm90/conv2d/conv2d.cu.j2",
    architectures=("sm90",),
    dtypes=("f16", "bf16"),
    parameters=(
        Parameter("merge", MERGED, "groups that are computed as one, with zeros between them"),
        Parameter("tile_m", (64, 128, 192, 256), "output pixels of a tile"),
        Parameter("tile_n", (32, 64, 96, 128, 192, 256), "output channels of a tile"),
        Parameter("tile_k", (16, 32, 64), "input channels a step"),
        Parameter("groups", (1, 2, 3), "warpgroups that multiply"),
        Parameter("schedule", ("cooperative", "pingpong"), "the warpgroups share a tile, or have one each, in turn"),
        Parameter("activations", ("im2col", "patch"), "a filter tap at a time, or the tile's patch with its halo"),
        Parameter("weights", ("streamed", "resident"), "loaded for each tile, or once for all tiles of a column"),
        Parameter("cluster_m", (1, 2, 4), "blocks that share their loads of weights"),
        Parameter("cluster_n", (1, 2, 4), "blocks that share their loads of activations"),
        Parameter("slices", (1, 2, 4, 8), "blocks of a cluster that split a tile's channels and taps"),
    ),
    launch_parameters=LAUNCH_PARAMETERS,
    legal=legal,
    values=_values,
    supports=_supports,
    fits=_fits,
    launches=launches,
    cost=_cost,
    context=_context,
    label=_label,
    weight_layouts=lambda config: {"weight": f"wgmma{m}" if (m := shape_of(config).merge) > 1 else "wgmma"},
    compile_seconds=(1.0, 1.2),
)
