"""Tiles of CUTLASS 2.x kernels: what they are made of and what they take. cutlass2_rules says which of them compile.

Tile names follow CUTLASS: the threadblock tile (tile_*) is made of warp tiles (warp_*); warp_k < tile_k slices the
tile's K over warps (sliced-K). All extents are powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from operator import itemgetter

from cutlass_library.library import DataType, DataTypeTag

from autotune.core import Architecture
from autotune.families.base import Config
from autotune.ir import Problem

Shape = tuple[int, int, int]

GENERATIONS = (70, 75, 80)
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s8": 8}
ELEMENTS = {
    "f16": DataType.f16,
    "bf16": DataType.bf16,
    "tf32": DataType.f32,  # its instruction is chosen by the class of the operation
    "f32": DataType.f32,
    "s8": DataType.s8,
}
ACCESS_BITS = 128  # of the widest access, which is also that to shared memory

# The instruction of each dtype and generation. Code of a generation runs on newer GPUs; 2.x has none after Ampere's.
_TENSOR_OPS: dict[tuple[str, int], Shape] = {
    ("f16", 70): (8, 8, 4),
    ("f16", 75): (16, 8, 8),
    ("f16", 80): (16, 8, 16),
    ("bf16", 80): (16, 8, 16),
    ("tf32", 80): (16, 8, 8),
    ("s8", 75): (8, 8, 16),
    ("s8", 80): (16, 8, 32),
}
_FMA = (1, 1, 1)
_PREDICATES = 32  # of the optimized filter iterator: one bit a row


def generation_of(arch: Architecture) -> int:
    """Whose instructions kernels for `arch` use."""
    return max(generation for generation in GENERATIONS if generation <= (arch.capability or 0))


def dtypes_of(generation: int) -> tuple[str, ...]:
    """The dtypes that a generation computes with."""
    return ("f32", *(dtype for dtype, since in _TENSOR_OPS if since == generation))


def accumulators(dtype: str) -> tuple[str, ...]:
    """What the products of a dtype can be summed in, the usual one first."""
    return {"f16": ("f32", "f16"), "s8": ("s32",)}.get(dtype, ("f32",))


@dataclass(frozen=True, eq=False)  # made by `_tile` alone, each once: told apart by which it is, which costs nothing
class Tile:
    """A threadblock tile made of warp tiles (m, n, k); warps whose k is half of the tile's slice it between them.

    alignment: elements of an access to the operands in global memory; vector: of one to the output.
    accumulator: "f32", "f16" or "s32". k_major: whether the operands A and B lie along the GEMM's K.
    """

    generation: int
    dtype: str
    shape: Shape
    warp: Shape
    stages: int
    alignment: int
    vector: int
    accumulator: str
    k_major: tuple[bool, bool] = (True, True)

    @property
    def simt(self) -> bool:
        """Whether it is computed by the ordinary pipelines instead of tensor cores."""
        return self.dtype == "f32"

    @property
    def instruction(self) -> Shape:
        """The shape of the instruction."""
        return _FMA if self.simt else _TENSOR_OPS[self.dtype, self.generation]

    @property
    def warps(self) -> Shape:
        """Warps along m, n and k."""
        (m, n, k), (wm, wn, wk) = self.shape, self.warp
        return m // wm, n // wn, k // wk

    @property
    def threads(self) -> int:
        """Threads of a block."""
        m, n, k = self.warps
        return 32 * m * n * k

    @property
    def lanes(self) -> tuple[int, int]:
        """Lanes of a warp along m and n, of a SIMT kernel."""
        lanes_m = 8 if self.stages == 2 and self.warp[0] > self.warp[1] else 4
        return lanes_m, 32 // lanes_m

    @property
    def load_elements(self) -> int:
        """Elements of the widest access to an operand."""
        return 1 if self.simt else ACCESS_BITS // BITS[self.dtype]

    @property
    def accumulator_registers(self) -> int:
        """Registers of a thread that hold sums."""
        return self.warp[0] * self.warp[1] // (64 if self.accumulator == "f16" else 32)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: the larger of main loop and epilogue."""
        (m, n, k), (wm, wn, _), partitions = self.shape, self.warp, self.warps[2]
        skew = 0
        rows, padding = 8, 8
        if self.simt:
            lanes_m, lanes_n = self.lanes
            skew = 2 * (32 // k) if self.stages == 2 else 0
            rows, padding = lanes_m, 4 * min(4, wn // lanes_n) + 1
        elif self.generation == 70:
            rows, padding = 16, 4 if self.accumulator == "f16" else 2
        main_loop = self.stages * (m + n + skew) * k * BITS[self.dtype] // 8
        epilogue = m // wm * rows * partitions * (n + padding) * (2 if self.accumulator == "f16" else 4)
        return max(main_loop, epilogue)

    @property
    def filter_rows_fit(self) -> bool:
        """Whether a thread's rows of a convolution's filter have a bit each in the optimized iterator's word."""
        return self.shape[1] * self.shape[2] // (self.load_elements * self.threads) < _PREDICATES

    def resident(self, arch: Architecture) -> int:
        """Blocks on a processor by shared memory, threads and an estimate of registers."""
        registers = min(255, self.accumulator_registers + 90)
        by_shared = arch.sm_shared // (self.shared_bytes + arch.reserved_shared)
        return max(1, min(by_shared, 65536 // (registers * self.threads), arch.sm_threads // self.threads))

    def wider(self, vector: int) -> Tile:
        """The same tile with another output vector."""
        others = self.generation, self.dtype, self.shape, self.warp, self.stages, self.alignment
        return _tile(*others, vector, self.accumulator, self.k_major)


_tile = cache(Tile)
_SIZES = itemgetter(*(f"{kind}_{axis}" for kind in ("tile", "warp") for axis in "mnk"))
_OTHERS = itemgetter("generation", "stages", "alignment")


def tile_of(config: Config, dtype: str, k_major: tuple[bool, bool] = (True, True)) -> Tile:
    """A config's tile. Where it names neither, the output's vector is the alignment, and sums are in float32."""
    m, n, k, *warp = _SIZES(config)
    generation, stages, alignment = _OTHERS(config)
    vector, accumulator = config.get("vector", alignment), config.get("accumulator", "f32")
    return _tile(generation, dtype, (m, n, k), tuple(warp), stages, alignment, vector, accumulator, k_major)


def too_large(problem: Problem) -> str | None:
    """What iterators with 32-bit strides cannot address."""
    return "tensors under 2 GiB" if max(operand.bytes for operand in problem.operands()) >= 2**31 else None


def swizzles(tiles_n: int) -> list[int]:
    """log2 of how many tiles of N neighbouring blocks can share."""
    return [log for log in (0, 1, 2) if log == 0 or 2**log <= tiles_n]


def label(config: Config) -> str:
    """A tile in few characters."""
    tile, warp = ("x".join(str(config[f"{name}_{axis}"]) for axis in "mnk") for name in ("tile", "warp"))
    return f"{tile}/{warp} s{config['stages']}"


def context(tile: Tile) -> dict[str, object]:
    """The templates' variables of a tile."""
    return {
        "cutlass_element": DataTypeTag[ELEMENTS[tile.dtype]],
        "arch_tag": f"cutlass::arch::Sm{tile.generation}",
        "threadblock": tile.shape,
        "warp": tile.warp,
        "instruction": tile.instruction,
        "stages": tile.stages,
        "threads": tile.threads,
        "shared_bytes": tile.shared_bytes,
        "alignment": tile.alignment,
        "vector": tile.vector,
    }
