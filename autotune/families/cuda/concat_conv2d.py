"""1x1 convolutions of concatenated inputs by mma.sync; fp16 and bf16, NHWC: templates/cuda/concat_conv2d.cuh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from autotune.core import Architecture
from autotune.families.base import Config, ConfigNumbers, Parameter, Rules, Value, require
from autotune.families.cuda.common import TensorCoreFamily
from autotune.families.cuda.rules import require_registers, require_shared
from autotune.ir import Epilogue
from autotune.ir.operators import ConcatConv2d

_VECTOR, _CHUNK, _ROW_BYTES = 8, 64, 128  # kVector, kK and kRowBytes of the template
_MAX_REGISTERS = 230  # of 255: the estimate leaves out addresses
_MOST_PIXELS = 2**31 - 1  # a kernel counts them in 32 bits
_L2_BYTES = 40  # that an SM reads a cycle when all SMs do
_STEP_CYCLES, _START_CYCLES = 300, 2500  # of a chunk's barriers and waits; of a tile's first loads and its end
_L2_LATENCY = 500  # cycles that two stages do not hide


@dataclass(frozen=True)
class Tile(ConfigNumbers):
    """A config's numbers: the pixels and output channels of a block and of a warp, and the buffers of chunks."""

    tile_m: int
    tile_n: int
    warp_m: int
    warp_n: int
    stages: int

    @property
    def threads(self) -> int:
        """Return the threads of a block."""
        return 32 * (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n)

    @property
    def registers(self) -> int:
        """Return the registers of a thread: sums, operands of a step, units that get their steps, and 60 others."""
        units = 4 * self.tile_m * _VECTOR // self.threads
        return self.warp_m * self.warp_n // 32 + max(self.warp_m // 4 + 4, units) + 60

    @property
    def shared_bytes(self) -> int:
        """Return the shared memory of a block."""
        return self.stages * (self.tile_m + self.tile_n) * _ROW_BYTES


class CudaConcatConv2d(TensorCoreFamily[ConcatConv2d]):
    """1x1 convolutions of concatenated inputs with steps before them, on tensor cores."""

    name = "cuda_concat_conv2d"
    operator = ConcatConv2d
    template = "cuda/concat_conv2d.cu.j2"
    parameters = (
        Parameter("tile_m", (32, 64, 128, 256), "pixels of a block"),
        Parameter("tile_n", (32, 64, 128, 256), "output channels of a block"),
        Parameter("warp_m", (16, 32, 64), "pixels of a warp"),
        Parameter("warp_n", (32, 64), "output channels of a warp"),
        Parameter("stages", (2, 3, 4, 6), "buffers of 64 input channels"),
    )
    compile_seconds = (0.9, 0.7)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        tile = Tile.from_config(config)
        yield require(epilogue.anchors == ConcatConv2d.anchors, "the epilogue must have the step conv")
        yield require(
            all(step.name != "store" for step in epilogue.parts[0]),
            "steps before the convolution must not store: several blocks apply them to the same pixels",
        )
        yield require(
            tile.warp_m <= tile.tile_m and tile.warp_n <= tile.tile_n, "a warp's part must not be larger than the tile"
        )
        yield require(64 <= tile.threads <= 512, f"a block must have 64 to 512 threads; it has {tile.threads}")
        rows = tile.threads // _VECTOR
        yield require(
            tile.tile_m % rows == 0 and tile.tile_n % rows == 0,
            f"the {tile.threads} threads copy {rows} rows at a time, which must divide tile_m and tile_n",
        )
        yield require_registers(arch, tile.threads, tile.registers, _MAX_REGISTERS)
        yield require_shared(arch, tile.shared_bytes)

    def unsupported(self, problem: ConcatConv2d) -> Rules:
        numbers = [problem.k]
        for piece in problem.pieces:
            numbers += [piece.pitch, piece.first, piece.end]
        yield require(
            all(number % _VECTOR == 0 for number in numbers),
            f"the pieces and the output must have multiples of {_VECTOR} channels",
        )
        pixels = problem.n * problem.h * problem.w
        yield require(pixels <= _MOST_PIXELS, f"the images must have at most {_MOST_PIXELS} pixels")

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: ConcatConv2d | None
    ) -> tuple[Value, ...]:
        if problem and parameter.name == "tile_n":  # no tile is more than half empty
            return tuple(value for value in parameter.values if int(value) < 2 * max(problem.k, 32))
        return parameter.values

    def cost(self, problem: ConcatConv2d, config: Config, arch: Architecture) -> float:
        """Estimate cycles: rounds of blocks, whose chunks are bound by products, shared memory or loads.

        The constants are estimates, not fitted.
        """
        tile = Tile.from_config(config)
        blocks = ceil(problem.n * problem.h * problem.w / tile.tile_m) * ceil(problem.k / tile.tile_n)
        resident = arch.resident_blocks(tile.threads, tile.registers, tile.shared_bytes)
        sharing = min(resident, ceil(blocks / arch.processors))
        products = tile.tile_m * tile.tile_n * _CHUNK / (arch.mma_rate or 512)
        read = tile.tile_m * (tile.tile_n // tile.warp_n) + tile.tile_n * (tile.tile_m // tile.warp_m)
        # Steps before the convolution read and write shared memory, and read vectors.
        early = 3 * tile.tile_m if problem.epilogue.parts[0] else 0
        loaded = (tile.tile_m + tile.tile_n) * _ROW_BYTES / _L2_BYTES
        wait = _STEP_CYCLES + (_L2_LATENCY if tile.stages == 2 else 0)
        step = max(sharing * max(products, read + early, loaded), wait)
        rounds = ceil(blocks / (arch.processors * resident))
        return rounds * (_START_CYCLES + ceil(problem.c / _CHUNK) * step + tile.tile_m * tile.tile_n / 6 * sharing)

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**config, "threads": Tile.from_config(config).threads}

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "kcrs"}


FAMILIES = (CudaConcatConv2d(),)
