"""Forward convolution for Hopper: persistent, warp-specialised, TMA and wgmma; NHWC.

fp16 and bf16 have float32 sums, signed bytes int32 sums; e4m3_conv2d.py has the kernels for e4m3. The GEMM is
M = n*p*q, N = k, K = r*s*c; a linear layer is a convolution of images of one pixel. See
templates/sm90/conv2d/conv2d.cuh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.core import Architecture, ceil_div
from autotune.families import se_gate
from autotune.families.base import DEVICE_IMAGE, Config, Parameter, Value
from autotune.families.base import RecordFamily as Family
from autotune.families.rules import Rules, first_unmet, require, require_no_overflow
from autotune.families.sm90.conv2d_launches import LAUNCH_PARAMETERS, columns_fit, launches, steps_fit
from autotune.families.sm90.conv2d_loads import (
    MERGED,
    Conv,
    Solved,
    blocks_needed,
    convolution_of,
    group_channels,
    loadings,
    merges,
    products_a_tile,
)
from autotune.families.sm90.conv2d_shape import ROW_BYTES, Conv2dShape, why_illegal
from autotune.families.sm90.im2col import im2col_rules
from autotune.ir import DTYPES, MAP_ELEMENTS, Conv2d, Conv2dSe, FoldedSe, Gemm

_FITS: dict[str, Callable[[Conv, int], bool]] = {"tile_n": columns_fit, "tile_k": steps_fit}
"""Parameter -> whether its value fits a convolution."""

# For the cost, in bytes a cycle of an SM: fitted, see `_cost`.
_READ_BYTES_A_CYCLE = 80  # from the L2 cache; data shared by multicast are read once
_RECEIVED_BYTES_A_CYCLE = 70  # into shared memory, by whichever block reads them
_PROMOTION_WAIT = 60  # cycles from the last product to the first addition: an estimate, not fitted


def _candidate_values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Solved | None
) -> Sequence[Value]:
    shares = chosen.get("activations") != "patch" and chosen.get("weights") != "resident"
    only_first_value = {
        "schedule": chosen.get("groups") != 2,
        "cluster_n": not shares,
        "slices": not shares or chosen.get("schedule") != "cooperative",
    }
    match parameter.name:
        case "merge":  # kernels of other values are compiled alike
            return merges(convolution_of(problem)) if problem else (1,)
        case "tile_n" | "tile_k" if problem:
            conv, fits = convolution_of(problem, int(chosen["merge"])), _FITS[parameter.name]
            return [value for value in parameter.values if fits(conv, int(value))]
    return parameter.values[:1] if only_first_value.get(parameter.name) else parameter.values


def _why_unsupported(problem: Solved) -> str | None:
    return first_unmet(_problem_rules(convolution_of(problem)))


def _problem_rules(problem: Conv) -> Rules:
    yield require(
        merges(problem),
        f"some of {', '.join(map(str, MERGED))} groups together must have a multiple of {ROW_BYTES[0]} bytes of input "
        "channels and of 32 output channels",
    )
    granule = 16 // DTYPES[problem.dtype].itemsize  # TMA's strides are multiples of 16 bytes
    yield require(problem.c % granule == 0 and problem.k % granule == 0, f"c and k must be multiples of {granule}")
    yield require_no_overflow(problem.dtype, problem.r * problem.s * group_channels(problem))
    yield from im2col_rules(problem, *problem.stride)
    if isinstance(problem, Conv2dSe | FoldedSe):
        yield from se_gate.problem_rules(problem)


def _why_unfit(problem: Solved, config: Config, arch: Architecture) -> str | None:
    merge, possible = int(config.get("merge", 1)), merges(convolution_of(problem))
    return require(merge in possible, f"it computes {merge} groups as one; the problem allows {possible}")


def _cost(problem: Solved, config: Config, arch: Architecture) -> float:
    """Estimate cycles: rounds of tiles, each bound by products or by loads.

    The constants are fitted to 1775 kernels timed on 23 layers of ResNets on an H200, and to the winners of layers with
    sizes that fit no tile.
    """
    x = Conv2dShape.from_config(config, problem.dtype)
    conv = convolution_of(problem, x.merge)
    processors, products, best = arch.processors_for(x.cluster), products_a_tile(conv, x), float("inf")
    for loading in loadings(conv, x):
        rounds = ceil_div(blocks_needed(conv, x, loading), processors)
        buffers = 2 * (loading.fill_bytes + x.weight_bytes) + x.staging_bytes(1)
        resident = max(1, min(x.blocks_by_registers(arch), rounds, arch.sm_shared // buffers))
        overlapping = resident * (2 if x.pingpong else 1)
        # With resident weights, no step waits for the next ones.
        waits: float = 80 * loading.fills + (40 if x.patch and x.resident else 150) * (products - loading.fills)
        if x.promote:
            waits += products / x.promote * (_PROMOTION_WAIT + x.accumulators / 2)
        arithmetic = products * x.m * max(x.columns, 24) * (x.row_bytes / 2) / arch.wgmma_rate + waits / overlapping
        pixels = loading.fills * loading.fill_bytes
        weights = products * x.weight_bytes / (rounds if x.resident else 1)
        read = (pixels / x.cluster_n + weights / x.cluster_m) / _READ_BYTES_A_CYCLE
        loads = max(read, (pixels + weights) / _RECEIVED_BYTES_A_CYCLE)
        epilogue = x.m * x.n / 4
        ends = 2000 + 15 * x.m + (500 if x.slices > 1 else 0)
        best = min(best, rounds * (max(arithmetic, loads) / x.slices + epilogue) + ends)
    return best


def _label(config: Config) -> str:
    x = Conv2dShape.from_config(config, "f16")  # no label depends on the dtype
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
    x = Conv2dShape.from_config(config, dtype)
    return {
        **config,
        "hidden": x.hidden,
        "image": config.get("image"),
        "type": dtype,
        "map_element": MAP_ELEMENTS[dtype],
        "resident_blocks": x.blocks_by_registers(arch),
        "many_sums": x.many_sums,
        "promote": x.promote,
        "totals": "",
    }


def _weight_layouts(config: Config) -> dict[str, str]:
    merge = int(config.get("merge", 1))
    return {"weight": f"wgmma{merge}" if merge > 1 else "wgmma"}


FAMILY = Family[Solved](
    name="sm90_conv2d",
    operator=(Conv2d, Conv2dSe, Gemm),
    kind=DEVICE_IMAGE,
    template="sm90/conv2d/conv2d.cu.j2",
    architectures=("sm90",),
    dtypes=("f16", "bf16", "s8"),
    parameters=(
        Parameter("merge", MERGED, "groups that are computed as one, with zeros between them"),
        Parameter("tile_m", (64, 128, 192, 256), "output pixels of a tile"),
        Parameter("tile_n", (32, 64, 96, 128, 192, 256), "output channels of a tile"),
        Parameter("tile_k", (16, 32, 64, 128), "input channels a step"),
        Parameter("groups", (1, 2, 3), "warpgroups that multiply"),
        Parameter("schedule", ("cooperative", "pingpong"), "the warpgroups share a tile, or have one each, in turn"),
        Parameter("activations", ("im2col", "patch"), "a filter tap at a time, or the tile's patch with its halo"),
        Parameter("weights", ("streamed", "resident"), "loaded for each tile, or once for all tiles of a column"),
        Parameter("cluster_m", (1, 2, 4), "blocks that share their loads of weights"),
        Parameter("cluster_n", (1, 2, 4), "blocks that share their loads of activations"),
        Parameter("slices", (1, 2, 4, 8), "blocks of a cluster that split a tile's channels and taps"),
    ),
    launch_parameters=LAUNCH_PARAMETERS,
    why_illegal=why_illegal,
    candidate_values=_candidate_values,
    why_unsupported=_why_unsupported,
    why_unfit=_why_unfit,
    launches=launches,
    cost=_cost,
    context=_context,
    label=_label,
    weight_layouts=_weight_layouts,
    compile_seconds=(1.0, 1.2),
)
