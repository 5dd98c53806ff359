"""Threadblock tiles of CUTLASS 2.x kernels and the resources that they take; tile_rules.py says which compile.

Names follow CUTLASS: the threadblock tile (tile_*) consists of warp tiles (warp_*); warp_k < tile_k slices the tile's K
over warps (sliced-K). All extents are powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from operator import itemgetter

from cutlass_library.library import DataType, DataTypeTag

from autotune.core import Architecture
from autotune.families.base import Config, require
from autotune.ir import Problem

Extents = tuple[int, int, int]
"""Sizes along m, n and k."""

GENERATIONS = (70, 75, 80)
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s8": 8}
ELEMENTS = {
    "f16": DataType.f16,
    "bf16": DataType.bf16,
    "tf32": DataType.f32,  # the class of the operation selects tf32's instruction
    "f32": DataType.f32,
    "s8": DataType.s8,
}
ACCESS_BITS = 128  # of the widest access to global memory, and of all accesses to shared memory

# (dtype, generation) -> the instruction. Newer GPUs run the code of an older generation; CUTLASS 2.x ends with Ampere.
_TENSOR_OPS: dict[tuple[str, int], Extents] = {
    ("f16", 70): (8, 8, 4),
    ("f16", 75): (16, 8, 8),
    ("f16", 80): (16, 8, 16),
    ("bf16", 80): (16, 8, 16),
    ("tf32", 80): (16, 8, 8),
    ("s8", 75): (8, 8, 16),
    ("s8", 80): (16, 8, 32),
}
_FMA = (1, 1, 1)
_PREDICATE_BITS = 32  # of a word of the optimized filter iterator, which has one bit for each row


def generation_of(arch: Architecture) -> int:
    """Return the generation whose instructions kernels for an architecture use."""
    return max(generation for generation in GENERATIONS if generation <= (arch.capability or 0))


def dtypes_of(generation: int) -> tuple[str, ...]:
    """Return the dtypes that a generation computes with."""
    return ("f32", *(dtype for dtype, since in _TENSOR_OPS if since == generation))


def accumulators(dtype: str) -> tuple[str, ...]:
    """Return the dtypes in which products of a dtype can be summed, the usual one first."""
    return {"f16": ("f32", "f16"), "s8": ("s32",)}.get(dtype, ("f32",))


@dataclass(frozen=True, eq=False)  # `_tile` makes each tile once, so identity replaces a comparison of all fields
class ThreadblockTile:
    """A threadblock tile that consists of warp tiles.

    Attributes:
        generation: The generation whose instructions it uses: 70, 75 or 80.
        dtype: Dtype of the operands.
        shape: The threadblock tile.
        warp: The warp tile. If its k is half of the tile's, two sets of warps slice the tile's K between them.
        stages: Tiles in flight between memory and arithmetic.
        alignment: Elements of an access to the operands in global memory.
        vector: Elements of an access to the output.
        accumulator: Dtype of sums: "f32", "f16" or "s32".
        k_major: Whether the operands A and B are contiguous along the GEMM's K.
    """

    generation: int
    dtype: str
    shape: Extents
    warp: Extents
    stages: int
    alignment: int
    vector: int
    accumulator: str
    k_major: tuple[bool, bool] = (True, True)

    @property
    def simt(self) -> bool:
        """Whether CUDA cores compute it instead of tensor cores."""
        return self.dtype == "f32"

    @property
    def instruction(self) -> Extents:
        """The shape of the instruction."""
        return _FMA if self.simt else _TENSOR_OPS[self.dtype, self.generation]

    @property
    def warps(self) -> Extents:
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
        """Lanes of a warp along m and n in a SIMT kernel."""
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
        """Dynamic shared memory in bytes: the larger of main loop and epilogue."""
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
        """Whether the optimized iterator's word has a bit for each of a thread's rows of a convolution's filter."""
        return self.shape[1] * self.shape[2] // (self.load_elements * self.threads) < _PREDICATE_BITS

    def resident(self, arch: Architecture) -> int:
        """Return the blocks an SM holds, by shared memory, threads and estimated registers (90 beside the sums)."""
        registers = min(255, self.accumulator_registers + 90)
        return arch.resident_blocks(self.threads, registers, self.shared_bytes)

    def with_vector(self, vector: int) -> ThreadblockTile:
        """Return the same tile with another access to the output."""
        return _tile(
            generation=self.generation,
            dtype=self.dtype,
            shape=self.shape,
            warp=self.warp,
            stages=self.stages,
            alignment=self.alignment,
            vector=vector,
            accumulator=self.accumulator,
            k_major=self.k_major,
        )


_tile = cache(ThreadblockTile)
_TILE_MNK, _WARP_MNK = itemgetter("tile_m", "tile_n", "tile_k"), itemgetter("warp_m", "warp_n", "warp_k")


def tile_of(config: Config, dtype: str, k_major: tuple[bool, bool] = (True, True)) -> ThreadblockTile:
    """Return a config's tile. By default `vector` is the alignment, and `accumulator` is float32."""
    return _tile(
        generation=config["generation"],
        dtype=dtype,
        shape=_TILE_MNK(config),
        warp=_WARP_MNK(config),
        stages=config["stages"],
        alignment=config["alignment"],
        vector=config.get("vector", config["alignment"]),
        accumulator=config.get("accumulator", "f32"),
        k_major=k_major,
    )


def require_addressable(problem: Problem) -> str | None:
    """Require that iterators with 32-bit strides can address all tensors."""
    largest = max(operand.bytes for operand in problem.operands())
    return require(largest < 2**31, f"each tensor must be smaller than 2 GiB; the largest has {largest} bytes")


def swizzles(tiles_n: int) -> list[int]:
    """Return log2 of the numbers of tiles of N that neighbouring blocks can share."""
    return [log for log in (0, 1, 2) if log == 0 or 2**log <= tiles_n]


def label(config: Config) -> str:
    """Return a config's tile in few characters."""
    tile, warp = ("x".join(str(config[f"{name}_{axis}"]) for axis in "mnk") for name in ("tile", "warp"))
    return f"{tile}/{warp} s{config['stages']}"


def context(tile: ThreadblockTile) -> dict[str, object]:
    """Return the templates' variables of a tile."""
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
