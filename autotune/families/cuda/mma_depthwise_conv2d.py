"""Depthwise convolution by mma.sync; fp16 and bf16, channels last: templates/cuda/mma_depthwise_conv2d.cuh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from autotune.core import Architecture
from autotune.families.base import Config, ConfigNumbers, Parameter, Rules, Value, require
from autotune.families.cuda.common import TensorCoreFamily
from autotune.families.cuda.rules import require_registers, require_shared, require_square_window
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2d

_FILTERS, _STRIDES = (3, 5, 7), (1, 2)
_VECTOR, _ROWS, _BAND_BYTES = 8, 16, 96  # kVector and kBandBytes of the template; rows of a product
_MAX_REGISTERS = 240  # of 255: the estimate leaves out addresses
_L2_BYTES = 40  # that an SM reads a cycle when all SMs do
_WAVEFRONT_BYTES = 128  # that shared memory moves a cycle
_START_CYCLES, _LATENCY = 1500, 1200  # of a block's bands and its end; of a tile's loads, which the block waits for


@dataclass(frozen=True)
class Tile(ConfigNumbers):
    """The outputs of a block: rows of an image, products side by side, channels, and how many tiles in turn."""

    filter: int
    stride: int
    rows: int
    tiles: int
    channels: int
    walk: int

    @property
    def images(self) -> int:
        """Return the images of a tile."""
        return max(1, _ROWS // self.rows)

    @property
    def columns(self) -> int:
        """Return the output columns of a tile."""
        return 8 * self.tiles

    @property
    def threads(self) -> int:
        """Return the threads of a block: a warp for eight channels of the rows of a product."""
        return 32 * self.channels // _VECTOR * self.rows * self.images // _ROWS

    @property
    def registers(self) -> int:
        """Return the registers of a thread: sums, operands of a product and inputs on their way, and 40 others."""
        return _VECTOR * self.tiles * 4 + max(2 * self.tiles + 8, 32) + 40

    @property
    def input_bytes(self) -> int:
        """Return the shared memory of a tile's inputs."""
        taps = ceil(self.filter / self.stride)
        row = ((self.tiles + 1) | 1) * 16
        channel = self.images * self.stride**2 * (self.rows + taps - 1) * row
        return self.channels * channel + 128

    @property
    def shared_bytes(self) -> int:
        """Return the shared memory of a block."""
        return self.input_bytes + self.channels * self.filter * self.stride * _BAND_BYTES


class CudaMmaDepthwiseConv2d(TensorCoreFamily[Conv2d]):
    """Depthwise convolution on tensor cores."""

    name = "cuda_mma_depthwise_conv2d"
    operator = Conv2d
    template = "cuda/mma_depthwise_conv2d.cu.j2"
    parameters = (
        Parameter("filter", _FILTERS, "side of the filter"),
        Parameter("stride", _STRIDES, "stride of both axes"),
        Parameter("rows", (8, 16, 32), "output rows of an image; 8: of two images"),
        Parameter("tiles", (1, 2, 4), "products side by side: 8 output columns each"),
        Parameter("channels", (16, 32, 64), "channels of a block"),
        Parameter("walk", (1, 2, 4, 8), "tiles that a block computes in turn"),
    )
    compile_seconds = (0.4, 0.2)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        tile = Tile.from_config(config)
        yield require(64 <= tile.threads <= 512, f"a block must have 64 to 512 threads; it has {tile.threads}")
        yield require_registers(arch, tile.threads, tile.registers, _MAX_REGISTERS)
        yield require_shared(arch, tile.shared_bytes)

    def unsupported(self, problem: Conv2d) -> Rules:
        yield require(problem.c == problem.k == problem.groups > 1, "groups must equal c and k: one channel a group")
        yield require(problem.c % _VECTOR == 0, f"the channels must be a multiple of {_VECTOR}")
        yield require_square_window(problem, _FILTERS, _STRIDES)

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Conv2d | None
    ) -> Sequence[Value]:
        if problem is None:
            return parameter.values
        if parameter.name == "rows":  # no tile is more than half empty, if a smaller one exists
            return tuple(value for value in parameter.values if int(value) < 2 * max(problem.p, 8))
        if parameter.name == "tiles":
            return tuple(value for value in parameter.values if 8 * int(value) < 2 * max(problem.q, 8))
        if parameter.name == "channels":
            return tuple(value for value in parameter.values if int(value) < 2 * max(problem.c, 16))
        return super().candidate_values(parameter, chosen, arch, dtype, problem)

    def decided(self, problem: Conv2d) -> Mapping[str, Value]:
        return {"filter": problem.r, "stride": problem.stride[0]}

    def cost(self, problem: Conv2d, config: Config, arch: Architecture) -> float:
        """Estimate cycles: rounds of blocks, each bound by products, shared memory or loads, plus waits.

        The constants are estimates, not fitted.
        """
        tile = Tile.from_config(config)
        tiles = ceil(problem.n / tile.images) * ceil(problem.p / tile.rows) * ceil(problem.q / tile.columns)
        blocks = ceil(tiles / tile.walk) * ceil(problem.c / tile.channels)
        resident = arch.resident_blocks(tile.threads, tile.registers, tile.shared_bytes)
        sharing = min(resident, ceil(blocks / arch.processors))
        warps, bands = tile.threads // 32, tile.filter * tile.stride
        products = warps * _VECTOR * bands * tile.tiles * 16 * 16 * 8 / (arch.mma_rate or 512)
        read = warps * _VECTOR * bands * (256 * (tile.tiles + 1) + 256) / _WAVEFRONT_BYTES
        filled = 2 * tile.input_bytes / _WAVEFRONT_BYTES
        loaded = tile.input_bytes * (1 + 16 / tile.channels) / _L2_BYTES  # short pieces of lines are read one by one
        step = sharing * max(products, read + filled, loaded) + _LATENCY
        start = _START_CYCLES + sharing * tile.channels * bands * tile.filter / 8
        return ceil(blocks / (arch.processors * resident)) * (start + tile.walk * step)

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**config, "threads": Tile.from_config(config).threads}

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "rsck"}


FAMILIES = (CudaMmaDepthwiseConv2d(),)
