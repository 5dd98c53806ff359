"""Implicit-GEMM forward convolution from CUTLASS 2.x, fp16 and bf16 with float32 accumulation, NHWC.

The GEMM is M = n*p*q, N = k, K = r*s*c. Tile names follow CUTLASS: the threadblock tile (tile_*) is made of
warp tiles (warp_*); warp_k < tile_k slices the tile's K over warps (sliced-K).
"""

from __future__ import annotations

from collections.abc import Iterator

from cutlass_library.library import (
    DataType,
    DataTypeTag,
    IteratorAlgorithm,
    IteratorAlgorithmTag,
    MathInstruction,
    MathOperation,
    MathOperationTag,
    OpcodeClass,
    OpcodeClassTag,
    TileDescription,
)

from autotune.arch import Architecture
from autotune.epilogue import Epilogue
from autotune.families.base import DEVICE_IMAGE, Config, Family, Launch, Parameter
from autotune.problem import Conv2d, Problem

_ELEMENTS = {"f16": DataType.f16, "bf16": DataType.bf16}
_VECTOR = 8  # elements of an access: 16 bytes
_EPILOGUE_ROWS = 8  # rows of accumulators that a warp puts into shared memory at a time


# The tensor-core instruction of each generation. Its code runs on newer GPUs too; 2.x has none newer than Ampere's.
_INSTRUCTIONS = {70: [8, 8, 4], 75: [16, 8, 8], 80: [16, 8, 16]}


def _generation(arch: Architecture) -> int:
    return max(generation for generation in _INSTRUCTIONS if generation <= (arch.capability or 0))


def _tile(config: Config, arch: Architecture, dtype: str) -> TileDescription:
    element = _ELEMENTS[dtype]
    math = MathInstruction(
        _INSTRUCTIONS[int(config["generation"])],
        element,
        element,
        DataType.f32,
        OpcodeClass.TensorOp,
        MathOperation.multiply_add,
    )
    tile, warp = _shape(config, "tile"), _shape(config, "warp")
    warps = [t // w for t, w in zip(tile, warp, strict=True)]
    return TileDescription(tile, int(config["stages"]), warps, math, arch.capability, 1024)


def _shape(config: Config, name: str) -> list[int]:
    return [int(config[f"{name}_{axis}"]) for axis in "mnk"]


def _warps(config: Config) -> int:
    (tm, tn, tk), (wm, wn, wk) = _shape(config, "tile"), _shape(config, "warp")
    return (tm // wm) * (tn // wn) * (tk // wk)


def shared_bytes(config: Config) -> int:
    """Dynamic shared memory of a kernel: the larger of main loop and epilogue."""
    (tm, tn, tk), (wm, _, wk) = _shape(config, "tile"), _shape(config, "warp")
    main_loop = int(config["stages"]) * (tm + tn) * tk * 2
    epilogue = (tm // wm) * _EPILOGUE_ROWS * (tk // wk) * (tn + 8) * 4
    return max(main_loop, epilogue)


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return next((why for broken, why in _rules(config, arch) if broken), None)


def _rules(config: Config, arch: Architecture) -> Iterator[tuple[bool, str]]:
    """What a config must not break, in an order in which each rule may rely on those before it."""
    (tm, tn, tk), (wm, wn, wk) = _shape(config, "tile"), _shape(config, "warp")
    generation, stages, threads = int(config["generation"]), int(config["stages"]), 32 * _warps(config)
    yield generation != _generation(arch), f"{arch.name} has the instructions of sm{_generation(arch)}"
    yield tm % wm > 0 or tn % wn > 0 or tk % wk > 0 or tk // wk > 2, "warp tiles do not divide the threadblock tile"
    yield not 64 <= threads <= 256, "64 to 256 threads"
    yield wm * wn > 64 * 64, "the accumulators would spill"
    yield generation < 80 and stages != 2, "two stages: there is no cp.async before sm80"
    yield generation >= 80 and stages == 2, "at least three stages from sm80 on"
    yield shared_bytes(config) > arch.block_shared, "shared memory"
    if generation == 70:
        yield tk != 32 or wk != 32 or wm % 32 > 0 or wn % 32 > 0, "sm70: tile_k 32, warps of multiples of 32x32"
        yield wm * wn == 64 * 64 and threads < 128, "sm70: the accumulators would spill"
        yield threads > 4 * min(tm, tn), "sm70: too many threads for the tile"
        # It compiles, but the epilogue's threads then cover some rows twice and miss others.
        yield tn < 64, "sm70: tile_n of at least 64"
        return
    steps = wk // _INSTRUCTIONS[generation][2]
    yield steps < 2 or steps % 2 > 0, "warp_k must be an even multiple of the instruction's"
    rows_a_pass = threads * _VECTOR // tk
    yield min(tm, tn) < rows_a_pass, "too many threads for the tile"
    yield tn // rows_a_pass >= 32, "the filter iterator's predicates fill more than a word"
    yield wn * wk < 32 * tk, "the epilogue's threads do not fit the tile"


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, Conv2d)
    if problem.groups != 1:
        return "groups"
    if problem.c % _VECTOR or problem.k % _VECTOR:
        return "c and k must be multiples of 8"
    if max(problem.r, problem.s) > 32:
        return "filters up to 32x32"
    if max(operand.bytes for operand in problem.operands()) >= 2**31:
        return "tensors under 2 GiB"
    return None


def _tiles(problem: Conv2d, config: Config) -> tuple[int, int]:
    tm, tn, _ = _shape(config, "tile")
    return -(-problem.n * problem.p * problem.q // tm), -(-problem.k // tn)


def _blocks_per_processor(config: Config, arch: Architecture) -> int:
    """Resident blocks by shared memory, threads and an estimate of registers."""
    threads = 32 * _warps(config)
    registers = int(config["warp_m"]) * int(config["warp_n"]) // 32 + 90
    by_shared = arch.sm_shared // (shared_bytes(config) + arch.reserved_shared)
    return max(1, min(by_shared, 65536 // (registers * threads), arch.sm_threads // threads))


def _slices(problem: Conv2d, config: Config, arch: Architecture) -> list[int]:
    """Splits of the channels worth trying: only where the tiles alone do not fill the machine."""
    tiles_m, tiles_n = _tiles(problem, config)
    room = 2 * arch.processors * _blocks_per_processor(config, arch)
    chunks = problem.c // int(config["tile_k"])
    return [s for s in (1, 2, 4, 8, 16) if s == 1 or (s <= chunks and tiles_m * tiles_n * s <= room)]


def _launches(problem: Problem, config: Config, arch: Architecture) -> list[Launch]:
    assert isinstance(problem, Conv2d)
    tiles_n = _tiles(problem, config)[1]
    swizzles = [log for log in (0, 1, 2) if log == 0 or 2**log <= tiles_n]
    return [{"swizzle": log, "slices": s} for s in _slices(problem, config, arch) for log in swizzles]


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Cycles by a crude model: waves of blocks, each bound by tensor cores, by its loads or by latency."""
    assert isinstance(problem, Conv2d)
    (tm, tn, tk), resident = _shape(config, "tile"), _blocks_per_processor(config, arch)
    tiles_m, tiles_n = _tiles(problem, config)
    best = float("inf")
    for slices in _slices(problem, config, arch):
        blocks = tiles_m * tiles_n * slices
        waves = -(-blocks // (arch.processors * resident))
        sharing = min(resident, -(-blocks // arch.processors))
        iterations = problem.r * problem.s * -(-problem.c // (slices * tk))
        arithmetic = tm * tn * tk / 1024 * sharing
        loads = (tm + tn) * tk * 2 / 48 * sharing
        latency = 700 / (int(config["stages"]) - 1) if config["stages"] != 2 else 600
        gather = 0.4 * tm * tn * (slices + 1) / 32 if slices > 1 else 0
        best = min(best, waves * (iterations * max(arithmetic, loads, latency) + 2500 + gather + tm * tn / 24))
    return best


def _label(config: Config) -> str:
    tile, warp = ("x".join(map(str, _shape(config, name))) for name in ("tile", "warp"))
    return f"{tile}/{warp} s{config['stages']}"


def _context(config: Config, arch: Architecture, dtype: str) -> dict[str, object]:
    tile = _tile(config, arch, dtype)
    math = tile.math_instruction
    return {
        "cutlass_element": DataTypeTag[math.element_a],
        "opcode_class": OpcodeClassTag[math.opcode_class],
        "math_operation": MathOperationTag[math.math_operation],
        "arch_tag": f"cutlass::arch::Sm{config['generation']}",
        "threadblock": tile.threadblock_shape,
        "warp": _shape(config, "warp"),
        "instruction": math.instruction_shape,
        "stages": tile.stages,
        "threads": 32 * _warps(config),
        "iterator": IteratorAlgorithmTag[IteratorAlgorithm.Optimized],
        "vector": _VECTOR,
        "alignment": _VECTOR,
    }


FAMILY = Family(
    name="cutlass2_conv2d",
    operator=Conv2d,
    kind=DEVICE_IMAGE,
    template="cutlass2/conv2d.cu.j2",
    architectures=("sm70", "sm75", "sm80", "sm86", "sm89", "sm90"),
    parameters=(
        Parameter("generation", (70, 75, 80), "whose tensor-core instructions: that of the architecture"),
        Parameter("tile_m", (32, 64, 128, 256), "threadblock tile: output pixels"),
        Parameter("tile_n", (32, 64, 128, 256), "threadblock tile: output channels"),
        Parameter("tile_k", (32, 64), "threadblock tile: input channels a step"),
        Parameter("warp_m", (16, 32, 64), "warp tile: output pixels"),
        Parameter("warp_n", (16, 32, 64), "warp tile: output channels"),
        Parameter("warp_k", (32, 64), "warp tile: input channels; half of tile_k slices K over warps"),
        Parameter("stages", (2, 3, 4, 5, 6), "tiles in flight between memory and tensor cores"),
    ),
    launch_parameters=(
        Parameter("swizzle", (0, 1, 2), "log2 of how many tiles of N neighbouring blocks share"),
        Parameter("slices", (1, 2, 4, 8, 16), "split of the input channels over blocks, summed in float32"),
    ),
    legal=_legal,
    supports=_supports,
    launches=_launches,
    cost=_cost,
    compile_seconds=(6.5, 1.0),
    context=_context,
    label=_label,
    weight_layouts=lambda _: {"weight": "krsc"},
)
