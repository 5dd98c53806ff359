"""Implicit-GEMM forward convolution from CUTLASS 2.x, NHWC, with groups of channels or without.

Matrix products are 1x1 convolutions of one-pixel images here; those of halves have a family of their own.
The GEMM is M = n*p*q, N = k, K = r*s*c. Tile names follow CUTLASS: the threadblock tile (tile_*) is made of
warp tiles (warp_*); warp_k < tile_k slices the tile's K over warps (sliced-K).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

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

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.families import cutlass2
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter, Value
from autotune.families.cutlass2 import Tile
from autotune.problem import Conv2d, Gemm, Problem

_ELEMENTS = {
    "f16": DataType.f16,
    "bf16": DataType.bf16,
    "tf32": DataType.f32,  # its instruction is chosen by the class of the operation
    "f32": DataType.f32,
    "s8": DataType.s8,
}
_ACCUMULATORS = {"f32": DataType.f32, "f16": DataType.f16, "s32": DataType.s32}
_ITERATORS = {
    "optimized": IteratorAlgorithm.Optimized,
    "analytic": IteratorAlgorithm.Analytic,
    "fixed_channels": IteratorAlgorithm.FixedChannels,
    "few_channels": IteratorAlgorithm.FewChannels,
}
_FLAT = ("fixed_channels", "few_channels")  # their steps run over r*s*c as a whole instead of over c for each (r, s)
_GROUP_MODES = {"none": "kNone", "single": "kSingleGroup", "multiple": "kMultipleGroup"}
_TILE_K = {8: (64, 128), 16: (32, 64), 32: (16, 32)}  # by bits of an element
_LONGEST_INTEGER_SUM = 2**31 // 2**14  # products of signed bytes that an int32 surely holds


def _tile(config: Config, dtype: str) -> Tile:
    m, n, k, wm, wn, wk = (int(config[f"{kind}_{axis}"]) for kind in ("tile", "warp") for axis in "mnk")
    numbers = (int(config[name]) for name in ("stages", "alignment", "vector"))
    return _tile_of(int(config["generation"]), dtype, (m, n, k), (wm, wn, wk), *numbers, str(config["accumulator"]))


_tile_of = cache(Tile)


@cache
def _broken(tile: Tile, arch: Architecture) -> str | None:
    return next(cutlass2.broken_rules(tile, arch), None)


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    tile = _tile(config, dtype)
    return _broken(tile, arch) or next((why for broken, why in _rules(tile, config) if broken), None)


def _rules(tile: Tile, config: Config) -> Iterator[tuple[bool, str]]:
    """What depends on how tiles are read."""
    iterator, groups, alignment = config["iterator"], config["groups"], int(config["alignment"])
    yield iterator == "optimized" and not cutlass2.filter_rows_fit(tile), "the filter iterator's predicates"
    yield tile.simt and iterator in _FLAT, "there are no SIMT kernels for few channels"
    if groups != "none":
        yield tile.simt or tile.generation == 70, "grouped kernels are for tensor cores from sm75 on"
        yield iterator in _FLAT, "there are no grouped kernels for few channels"
        yield groups == "multiple" and iterator == "optimized", "many groups a tile need the analytic iterator"
        yield alignment * cutlass2.BITS[tile.dtype] < 32, "groups of fewer channels than 4 bytes hold"


def _values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Problem | None
) -> Sequence[Value]:
    """The values of a parameter that can be legal with those before it, and fit."""
    problem = _conv(problem) if problem else None
    values, bits = parameter.values, cutlass2.BITS[dtype]
    match parameter.name:
        case "generation":
            values = (cutlass2.generation_of(arch),)
        case "tile_k":
            values = (8, 16) if dtype == "f32" else _TILE_K[bits]
        case "warp_m" | "warp_n" | "warp_k":
            whole = int(chosen[parameter.name.replace("warp", "tile")])
            least = whole // 2 if parameter.name == "warp_k" else 0
            values = tuple(v for v in values if least <= int(v) <= whole)
        case "alignment" | "vector":
            values = (1,) if dtype == "f32" else tuple(v for v in values if int(v) * bits <= 128)
            if problem and parameter.name == "alignment":
                values = tuple(v for v in values if _fits_alignment(problem, int(v)) is None)
            elif problem:
                values = tuple(v for v in values if problem.k % int(v) == 0)
        case "accumulator":
            values = cutlass2.accumulators(dtype)
        case "stages":
            values = values if int(chosen["generation"]) >= 80 else (2,)
        case "iterator":
            values = _iterators(_tile(chosen, dtype), arch, problem)
        case "groups" if problem:
            values = ("none",) if problem.groups == 1 else ("single", "multiple")
    return values


def _iterators(tile: Tile, arch: Architecture, problem: Conv2d | None) -> tuple[str, ...]:
    """Those worth enumerating. All that decides whether a tile compiles is chosen: here hopeless branches end."""
    if _broken(tile, arch) or (problem and _fits_vector(problem, tile, arch)):
        return ()
    return tuple(v for v in _ITERATORS if not (problem and _fits_iterator(problem, v, tile.alignment, tile.shape[2])))


def _conv(problem: Problem) -> Conv2d:
    """The convolution that a problem is."""
    conv = problem.as_conv2d if isinstance(problem, Gemm) else problem
    assert isinstance(conv, Conv2d)
    return conv


def _supports(problem: Problem) -> str | None:
    if isinstance(problem, Gemm) and problem.dtype in ("f16", "bf16"):
        return "matrix products in f16 and bf16, which have a family of their own"
    problem = _conv(problem)
    if problem.groups > 1 and problem.c == problem.groups:
        return "groups of one channel"
    if problem.groups > 1 and problem.dtype == "f32":
        return "groups are for tensor cores"
    if max(operand.bytes for operand in problem.operands()) >= 2**31:
        return "tensors under 2 GiB"
    if problem.dtype == "s8" and problem.r * problem.s * problem.c // problem.groups >= _LONGEST_INTEGER_SUM:
        return "sums that could overflow int32"
    return None


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    """Why a kernel cannot solve a problem, or moves less at a time than it could."""
    problem = _conv(problem)
    return (
        _fits_alignment(problem, int(config["alignment"]))
        or _fits_groups(problem, config)
        or _fits_iterator(problem, str(config["iterator"]), int(config["alignment"]), int(config["tile_k"]))
        or _fits_vector(problem, _tile(config, problem.dtype), arch)
    )


def _fits_alignment(problem: Conv2d, alignment: int) -> str | None:
    channels, widest = problem.c // problem.groups, 128 // cutlass2.BITS[problem.dtype]
    if channels % alignment:
        return "a group's input channels are no multiple of an access"
    if problem.dtype != "f32" and alignment < widest and channels % (2 * alignment) == 0:
        return "a wider access to the input fits"
    return None


def _fits_vector(problem: Conv2d, tile: Tile, arch: Architecture) -> str | None:
    if problem.k % tile.vector:
        return "the output channels are no multiple of an access"
    wider = (tile.vector * factor for factor in (2, 4, 8, 16))
    if any(problem.k % v == 0 and _broken(cutlass2.wider(tile, v), arch) is None for v in wider):
        return "a wider access to the output fits"
    return None


def _fits_iterator(problem: Conv2d, iterator: str, alignment: int, tile_k: int) -> str | None:
    if iterator == "optimized" and max(problem.r, problem.s) > 32:
        return "filters up to 32x32"
    if iterator in _FLAT:
        if problem.c >= tile_k or problem.r * problem.s == 1:
            return "enough channels for a step"
        if (iterator == "fixed_channels") != (problem.c == alignment):
            return "fixed_channels is for exactly as many channels as an access, few_channels for other multiples"
    return None


def _fits_groups(problem: Conv2d, config: Config) -> str | None:
    mode, tile_n, outputs = config["groups"], int(config["tile_n"]), problem.k // problem.groups
    if (mode == "none") != (problem.groups == 1):
        return f"groups={problem.groups}"
    if mode == "single" and outputs % tile_n:
        return "tile_n must divide a group's output channels"
    if mode == "multiple" and (tile_n % outputs or outputs == tile_n):
        return "a group's output channels must divide tile_n, and be fewer"
    return None


def _tiles(problem: Conv2d, config: Config) -> tuple[int, int]:
    tm, tn = int(config["tile_m"]), int(config["tile_n"])
    return -(-problem.n * problem.p * problem.q // tm), -(-problem.k // tn)


def _blocks_per_processor(tile: Tile, arch: Architecture) -> int:
    """Resident blocks by shared memory, threads and an estimate of registers."""
    registers = min(255, tile.accumulator_registers + 90)
    by_shared = arch.sm_shared // (tile.shared_bytes + arch.reserved_shared)
    return max(1, min(by_shared, 65536 // (registers * tile.threads), arch.sm_threads // tile.threads))


def _slices(problem: Conv2d, config: Config, arch: Architecture) -> list[int]:
    """Splits of the channels worth trying: only where the tiles alone do not fill the machine."""
    if config["iterator"] in _FLAT or problem.groups > 1:
        return [1]
    tiles_m, tiles_n = _tiles(problem, config)
    room = 2 * arch.processors * _blocks_per_processor(_tile(config, problem.dtype), arch)
    chunks = problem.c // int(config["tile_k"])
    return [s for s in (1, 2, 4, 8, 16) if s == 1 or (s <= chunks and tiles_m * tiles_n * s <= room)]


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    problem = _conv(problem)
    tiles_n = _tiles(problem, config)[1]
    swizzles = [log for log in (0, 1, 2) if log == 0 or 2**log <= tiles_n]
    return [{"swizzle": log, "slices": s} for s in _slices(problem, config, arch) for log in swizzles]


def _iterations(problem: Conv2d, config: Config, slices: int) -> int:
    """Steps of a block's main loop."""
    tile_k, channels = int(config["tile_k"]), problem.c // problem.groups
    if config["iterator"] in _FLAT:
        return -(-problem.r * problem.s * problem.c // tile_k)
    groups_a_tile = int(config["tile_n"]) * problem.groups // problem.k if config["groups"] == "multiple" else 1
    return problem.r * problem.s * -(-channels // (slices * tile_k)) * groups_a_tile


_ADDRESSING = {"optimized": 0.0, "analytic": 5.0, "fixed_channels": 8.0, "few_channels": 12.0}  # cycles a row


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: waves of blocks, each bound by arithmetic, by its loads or by latency."""
    problem = _conv(problem)
    tile = _tile(config, problem.dtype)
    (tm, tn, tk), resident, bits = tile.shape, _blocks_per_processor(tile, arch), cutlass2.BITS[problem.dtype]
    tiles_m, tiles_n = _tiles(problem, config)
    rate = 64 if tile.simt else 1024 * 16 // bits  # products a cycle
    accesses = (tm + tn) * tk // tile.alignment / (tile.threads * (1 if tile.simt else 4))
    best = float("inf")
    for slices in _slices(problem, config, arch):
        blocks = tiles_m * tiles_n * slices
        waves = -(-blocks // (arch.processors * resident))
        sharing = min(resident, -(-blocks // arch.processors))
        arithmetic = tm * tn * tk / rate * sharing
        loads = ((tm + tn) * tk * bits / 8 / 48 + _ADDRESSING[str(config["iterator"])] * accesses) * sharing
        latency = 700 / (tile.stages - 1) if tile.stages != 2 else 600
        gather = 0.4 * tm * tn * (slices + 1) / 32 if slices > 1 else 0
        step = max(arithmetic, loads + accesses * sharing, latency)
        store = tm * tn / (3 * min(8, tile.vector) if not tile.simt else 12)
        best = min(best, waves * (_iterations(problem, config, slices) * step + 2500 + gather + store))
    return best * (0.97 if tile.accumulator == "f16" else 1.0)


def _label(config: Config) -> str:
    tile, warp = ("x".join(str(config[f"{name}_{axis}"]) for axis in "mnk") for name in ("tile", "warp"))
    words = [f"{tile}/{warp} s{config['stages']}"]
    words += [
        str(config[name]) for name in ("iterator", "groups") if config.get(name) not in (None, "optimized", "none")
    ]
    return " ".join([*words, *(["f16 sums"] if config.get("accumulator") == "f16" else [])])


def _needs(config: Config) -> Sequence[str]:
    return ("f16_accumulation",) if config["accumulator"] == "f16" else ()


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    tile = _tile(config, dtype)
    operation = MathOperation.multiply_add_saturate if dtype == "s8" else MathOperation.multiply_add
    return {
        "cutlass_element": DataTypeTag[_ELEMENTS[dtype]],
        # The epilogue is ours; signed bytes take CUTLASS's path for whole sums, whose shapes are all supported.
        "stored_element": DataTypeTag[DataType.s32 if dtype == "s8" else _ELEMENTS[dtype]],
        "accumulator": DataTypeTag[_ACCUMULATORS[tile.accumulator]],
        "opcode_class": OpcodeClassTag[OpcodeClass.Simt if tile.simt else OpcodeClass.TensorOp],
        "math_operation": MathOperationTag[operation],
        "arch_tag": f"cutlass::arch::Sm{tile.generation}",
        "threadblock": tile.shape,
        "warp": tile.warp,
        "instruction": tile.instruction,
        "stages": tile.stages,
        "threads": tile.threads,
        "shared_bytes": tile.shared_bytes,
        "iterator": IteratorAlgorithmTag[_ITERATORS[str(config["iterator"])]],
        "group_mode": f"cutlass::conv::GroupMode::{_GROUP_MODES[str(config['groups'])]}",
        "vector": tile.vector,
        "alignment": tile.alignment,
    }


FAMILY = Family(
    name="cutlass2_conv2d",
    operator=(Conv2d, Gemm),
    kind=DEVICE_IMAGE,
    template="cutlass2/conv2d.cu.j2",
    architectures=("sm70", "sm75", "sm80", "sm86", "sm89", "sm90"),
    dtypes=("f16", "bf16", "tf32", "f32", "s8"),
    parameters=(
        Parameter("generation", cutlass2.GENERATIONS, "whose instructions: those of the architecture"),
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
    supports=_supports,
    fits=_fits,
    launches=_launches,
    cost=_cost,
    compile_seconds=(6.5, 1.0),
    context=_context,
    label=_label,
    weight_layouts=lambda _: {"weight": "krsc"},
)
