"""Implicit-GEMM forward convolution from CUTLASS 2.x, NHWC, with or without groups of channels.

It solves matrix products as 1x1 convolutions of one-pixel images, except those of halves: see cutlass2_gemm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Rules, Value, first_unmet, require
from autotune.families.cutlass2 import tile as tiles
from autotune.families.cutlass2 import tile_rules
from autotune.families.cutlass2.conv2d_cost import cost, launches
from autotune.families.cutlass2.conv2d_rules import (
    FLAT,
    alignment_rules,
    as_conv2d,
    fit_rules,
    iterator_rules,
    problem_rules,
    vector_rules,
)
from autotune.families.cutlass2.tile import ThreadblockTile, tile_of
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2d, Gemm

_ACCUMULATORS = {"f32": DataType.f32, "f16": DataType.f16, "s32": DataType.s32}
_ITERATORS = {
    "optimized": IteratorAlgorithm.Optimized,
    "analytic": IteratorAlgorithm.Analytic,
    "fixed_channels": IteratorAlgorithm.FixedChannels,
    "few_channels": IteratorAlgorithm.FewChannels,
}
_GROUP_MODES = {"none": "kNone", "single": "kSingleGroup", "multiple": "kMultipleGroup"}
_TILE_K = {8: (64, 128), 16: (32, 64), 32: (16, 32)}  # bits of an element -> values


def _iterator_rules(tile: ThreadblockTile, config: Config) -> Rules:
    iterator, groups, alignment = config["iterator"], config["groups"], int(config["alignment"])
    yield require(
        iterator != "optimized" or tile.filter_rows_fit,
        "optimized: a thread must have fewer than 32 rows of the filter",
    )
    yield require(not tile.simt or iterator not in FLAT, f"there are no SIMT kernels with {iterator}")
    if groups != "none":
        yield require(not tile.simt and tile.generation >= 75, "grouped kernels need tensor cores of sm75 or newer")
        yield require(iterator not in FLAT, f"there are no grouped kernels with {iterator}")
        yield require(groups != "multiple" or iterator != "optimized", "groups=multiple needs the analytic iterator")
        yield require(alignment * tiles.BITS[tile.dtype] >= 32, "grouped kernels need accesses of at least 4 bytes")


def _iterators(tile: ThreadblockTile, arch: Architecture, problem: Conv2d | None) -> tuple[str, ...]:
    """Return the iterators worth enumerating: none for a tile that does not compile or fit, which ends its branch."""
    if tile_rules.why_illegal(tile, arch) or (problem and first_unmet(vector_rules(problem, tile, arch))):
        return ()
    if problem is None:
        return tuple(_ITERATORS)
    return tuple(v for v in _ITERATORS if not first_unmet(iterator_rules(problem, v, tile.alignment, tile.shape[2])))


class Cutlass2Conv2d(Family[Conv2d | Gemm]):
    """The GEMM is M = n*p*q, N = k, K = r*s*c."""

    name = "cutlass2_conv2d"
    operator = (Conv2d, Gemm)
    kind = DEVICE_IMAGE
    template = "cutlass2/conv2d.cu.j2"
    architectures = cuda_architectures()
    dtypes = ("f16", "bf16", "tf32", "f32", "s8")
    parameters = (
        Parameter("generation", tiles.GENERATIONS, "generation of its instructions: the architecture's"),
        Parameter("tile_m", (32, 64, 128, 256), "threadblock tile: output pixels"),
        Parameter("tile_n", (32, 64, 128, 256), "threadblock tile: output channels"),
        Parameter("tile_k", (8, 16, 32, 64, 128), "threadblock tile: input channels a step"),
        Parameter("warp_m", (16, 32, 64), "warp tile: output pixels"),
        Parameter("warp_n", (16, 32, 64), "warp tile: output channels"),
        Parameter("warp_k", (8, 16, 32, 64, 128), "warp tile: input channels; half of tile_k slices K over warps"),
        Parameter("alignment", (1, 2, 4, 8, 16), "input channels an access"),
        Parameter("vector", (1, 2, 4, 8, 16), "output channels an access"),
        Parameter("accumulator", ("f32", "f16", "s32"), "dtype in which products are summed"),
        Parameter("stages", (2, 3, 4, 5, 6), "tiles in flight between memory and arithmetic"),
        Parameter("iterator", tuple(_ITERATORS), "how a tile's addresses are found"),
        Parameter("groups", tuple(_GROUP_MODES), "groups of channels of a tile"),
    )
    launch_parameters = (
        Parameter("swizzle", (0, 1, 2), "log2 of how many tiles of N neighbouring blocks share"),
        Parameter("slices", (1, 2, 4, 8, 16), "split of the input channels over blocks, summed before the epilogue"),
    )
    compile_seconds = (6.5, 1.0)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        tile = tile_of(config, dtype)
        yield tile_rules.why_illegal(tile, arch)
        yield from _iterator_rules(tile, config)

    def unsupported(self, problem: Conv2d | Gemm) -> Rules:
        return problem_rules(problem)

    def unfit(self, problem: Conv2d | Gemm, config: Config, arch: Architecture) -> Rules:
        return fit_rules(problem, config, arch)

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Conv2d | Gemm | None
    ) -> Sequence[Value]:
        conv = as_conv2d(problem) if problem else None
        values, bits = parameter.values, tiles.BITS[dtype]
        match parameter.name:
            case "generation":
                values = (tiles.generation_of(arch),)
            case "tile_k":
                values = (8, 16) if dtype == "f32" else _TILE_K[bits]
            case "warp_m" | "warp_n":
                values = tuple(v for v in values if int(v) <= int(chosen[parameter.name.replace("warp", "tile")]))
            case "warp_k":
                m, n, k, wm, wn = (int(chosen[name]) for name in ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n"))
                warps = m // wm * (n // wn)  # of each slice of K; tile_rules.py refuses other numbers
                values = tuple(v for v in values if k // int(v) in (1, 2) and 2 <= warps * (k // int(v)) <= 8)
            case "alignment" | "vector":
                values = (1,) if dtype == "f32" else tuple(v for v in values if int(v) * bits <= 128)
                if conv and parameter.name == "alignment":
                    values = tuple(v for v in values if first_unmet(alignment_rules(conv, int(v))) is None)
                elif conv:
                    values = tuple(v for v in values if conv.k % int(v) == 0)
            case "accumulator":
                values = tiles.accumulators(dtype)
            case "stages":
                values = values if int(chosen["generation"]) >= 80 else (2,)
            case "iterator":
                values = _iterators(tile_of(chosen, dtype), arch, conv)
            case "groups" if conv:
                values = ("none",) if conv.groups == 1 else ("single", "multiple")
        return values

    def launches(self, problem: Conv2d | Gemm, config: Config, arch: Architecture) -> list[Launch]:
        return launches(problem, config, arch)

    def cost(self, problem: Conv2d | Gemm, config: Config, arch: Architecture) -> float:
        return cost(problem, config, arch)

    def required_permissions(self, config: Config) -> Sequence[str]:
        return ("f16_accumulation",) if config.get("accumulator") == "f16" else ()

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        tile = tile_of(config, dtype)
        operation = MathOperation.multiply_add_saturate if dtype == "s8" else MathOperation.multiply_add
        return {
            **tiles.context(tile),
            # The epilogue is our own; for signed bytes it replaces CUTLASS's path for int32 results, with all shapes.
            "stored_element": DataTypeTag[DataType.s32 if dtype == "s8" else tiles.ELEMENTS[dtype]],
            "accumulator": DataTypeTag[_ACCUMULATORS[tile.accumulator]],
            "opcode_class": OpcodeClassTag[OpcodeClass.Simt if tile.simt else OpcodeClass.TensorOp],
            "math_operation": MathOperationTag[operation],
            "iterator": IteratorAlgorithmTag[_ITERATORS[str(config["iterator"])]],
            "group_mode": f"cutlass::conv::GroupMode::{_GROUP_MODES[str(config['groups'])]}",
        }

    def label(self, config: Config) -> str:
        words = [
            str(config[name]) for name in ("iterator", "groups") if config.get(name) not in (None, "optimized", "none")
        ]
        sums = ["f16 sums"] if config.get("accumulator") == "f16" else []
        return " ".join([tiles.label(config), *words, *sums])

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "krsc"}


FAMILIES = (Cutlass2Conv2d(),)
