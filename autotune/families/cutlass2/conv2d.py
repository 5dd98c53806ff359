"""Implicit-GEMM forward convolution from CUTLASS 2.x, NHWC, with groups of channels or without.

Matrix products are 1x1 convolutions of one-pixel images here; those of halves have a family of their own.
The GEMM is M = n*p*q, N = k, K = r*s*c.
"""

from __future__ import annotations

from collections.abc import Sequence

from cutlass_library.library import (
    DataType,
    DataTypeTag,
    IteratorAlgorithm,
    IteratorAlgorithmTag,
    MathOperation,
    MathOperationTag,
    OpcodeClass,
    OpcodeClassTag,
)

from autotune.core import Architecture
from autotune.families import cuda_shared
from autotune.families.base import DEVICE_IMAGE, Config, Family, Parameter, Value
from autotune.families.cutlass2 import tiling
from autotune.families.cutlass2.conv2d_cost import cost, launches
from autotune.families.cutlass2.conv2d_fits import (
    FLAT,
    as_conv2d,
    fits,
    fits_alignment,
    fits_iterator,
    fits_vector,
    supports,
)
from autotune.families.cutlass2.rules import Rules, broken
from autotune.families.cutlass2.tiling import Tile, tile_of
from autotune.ir import Conv2d, Epilogue, Gemm, Problem

_ACCUMULATORS = {"f32": DataType.f32, "f16": DataType.f16, "s32": DataType.s32}
_ITERATORS = {
    "optimized": IteratorAlgorithm.Optimized,
    "analytic": IteratorAlgorithm.Analytic,
    "fixed_channels": IteratorAlgorithm.FixedChannels,
    "few_channels": IteratorAlgorithm.FewChannels,
}
_GROUP_MODES = {"none": "kNone", "single": "kSingleGroup", "multiple": "kMultipleGroup"}
_TILE_K = {8: (64, 128), 16: (32, 64), 32: (16, 32)}  # by bits of an element


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    tile = tile_of(config, dtype)
    return broken(tile, arch) or next((why for is_broken, why in _rules(tile, config) if is_broken), None)


def _rules(tile: Tile, config: Config) -> Rules:
    """What depends on how tiles are read."""
    iterator, groups, alignment = config["iterator"], config["groups"], int(config["alignment"])
    yield iterator == "optimized" and not tile.filter_rows_fit, "the filter iterator's predicates"
    yield tile.simt and iterator in FLAT, "there are no SIMT kernels for few channels"
    if groups != "none":
        yield tile.simt or tile.generation == 70, "grouped kernels are for tensor cores from sm75 on"
        yield iterator in FLAT, "there are no grouped kernels for few channels"
        yield groups == "multiple" and iterator == "optimized", "many groups a tile need the analytic iterator"
        yield alignment * tiling.BITS[tile.dtype] < 32, "groups of fewer channels than 4 bytes hold"


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    """The values of a parameter that can be legal with those before it, and fit."""
    problem = as_conv2d(problem) if problem else None
    values, bits = parameter.values, tiling.BITS[dtype]
    match parameter.name:
        case "generation":
            values = (tiling.generation_of(arch),)
        case "tile_k":
            values = (8, 16) if dtype == "f32" else _TILE_K[bits]
        case "warp_m" | "warp_n":
            values = tuple(v for v in values if int(v) <= int(chosen[parameter.name.replace("warp", "tile")]))
        case "warp_k":
            m, n, k, wm, wn = (int(chosen[name]) for name in ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n"))
            warps = m // wm * (n // wn)  # of each slice of K; what cutlass2_rules.py refuses need not be enumerated
            values = tuple(v for v in values if k // int(v) in (1, 2) and 2 <= warps * (k // int(v)) <= 8)
        case "alignment" | "vector":
            values = (1,) if dtype == "f32" else tuple(v for v in values if int(v) * bits <= 128)
            if problem and parameter.name == "alignment":
                values = tuple(v for v in values if fits_alignment(problem, int(v)) is None)
            elif problem:
                values = tuple(v for v in values if problem.k % int(v) == 0)
        case "accumulator":
            values = tiling.accumulators(dtype)
        case "stages":
            values = values if int(chosen["generation"]) >= 80 else (2,)
        case "iterator":
            values = _iterators(tile_of(chosen, dtype), arch, problem)
        case "groups" if problem:
            values = ("none",) if problem.groups == 1 else ("single", "multiple")
    return values


def _iterators(tile: Tile, arch: Architecture, problem: Conv2d | None) -> tuple[str, ...]:
    """Those worth enumerating. All that decides whether a tile compiles is chosen: here hopeless branches end."""
    if broken(tile, arch) or (problem and fits_vector(problem, tile, arch)):
        return ()
    return tuple(v for v in _ITERATORS if not (problem and fits_iterator(problem, v, tile.alignment, tile.shape[2])))


def _label(config: Config) -> str:
    words = [
        str(config[name]) for name in ("iterator", "groups") if config.get(name) not in (None, "optimized", "none")
    ]
    sums = ["f16 sums"] if config.get("accumulator") == "f16" else []
    return " ".join([tiling.label(config), *words, *sums])


def _needs(config: Config) -> Sequence[str]:
    return ("f16_accumulation",) if config.get("accumulator") == "f16" else ()


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    tile = tile_of(config, dtype)
    operation = MathOperation.multiply_add_saturate if dtype == "s8" else MathOperation.multiply_add
    return {
        **tiling.context(tile),
        # The epilogue is ours; signed bytes take CUTLASS's path for whole sums, whose shapes are all supported.
        "stored_element": DataTypeTag[DataType.s32 if dtype == "s8" else tiling.ELEMENTS[dtype]],
        "accumulator": DataTypeTag[_ACCUMULATORS[tile.accumulator]],
        "opcode_class": OpcodeClassTag[OpcodeClass.Simt if tile.simt else OpcodeClass.TensorOp],
        "math_operation": MathOperationTag[operation],
        "iterator": IteratorAlgorithmTag[_ITERATORS[str(config["iterator"])]],
        "group_mode": f"cutlass::conv::GroupMode::{_GROUP_MODES[str(config['groups'])]}",
    }


FAMILY = Family(
    name="cutlass2_conv2d",
    operator=(Conv2d, Gemm),
    kind=DEVICE_IMAGE,
    template="cutlass2/conv2d.cu.j2",
    architectures=cuda_shared.ARCHITECTURES,
    dtypes=("f16", "bf16", "tf32", "f32", "s8"),
    parameters=(
        Parameter("generation", tiling.GENERATIONS, "whose instructions: those of the architecture"),
        Parameter("tile_m", (32, 64, 128, 256), "threadblock tile: output pixels"),
        Parameter("tile_n", (32, 64, 128, 256), "threadblock tile: output channels"),
        Parameter("tile_k", (8, 16, 32, 64, 128), "threadblock tile: input channels a step"),
        Parameter("warp_m", (16, 32, 64), "warp tile: output pixels"),
        Parameter("warp_n", (16, 32, 64), "warp tile: output channels"),
        Parameter("warp_k", (8, 16, 32, 64, 128), "warp tile: input channels; half of tile_k slices K over warps"),
        Parameter("alignment", (1, 2, 4, 8, 16), "input channels an access"),
        Parameter("vector", (1, 2, 4, 8, 16), "output channels an access"),
        Parameter("accumulator", ("f32", "f16", "s32"), "what products are summed in"),
        Parameter("stages", (2, 3, 4, 5, 6), "tiles in flight between memory and arithmetic"),
        Parameter("iterator", tuple(_ITERATORS), "how a tile's addresses are found"),
        Parameter("groups", tuple(_GROUP_MODES), "groups of channels of a tile"),
    ),
    launch_parameters=(
        Parameter("swizzle", (0, 1, 2), "log2 of how many tiles of N neighbouring blocks share"),
        Parameter("slices", (1, 2, 4, 8, 16), "split of the input channels over blocks, summed before the epilogue"),
    ),
    legal=_legal,
    needs=_needs,
    values=_values,
    supports=supports,
    fits=fits,
    launches=launches,
    cost=cost,
    compile_seconds=(6.5, 1.0),
    context=_context,
    label=_label,
    weight_layouts=lambda _: {"weight": "krsc"},
)
