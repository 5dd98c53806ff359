"""Convolution with groups by mma.sync; fp16 and bf16, channels last: templates/cuda/grouped_conv2d.cuh."""

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

_FILTERS, _STRIDES, _WIDTHS = (3, 5, 7), (1, 2), (1, 4, 8, 16, 24, 32, 40, 48, 56, 64)
_VECTOR, _PIXELS = 8, 16  # channels of a unit; pixels of a product
_MAX_REGISTERS = 240  # of 255: the estimate leaves out addresses
_L2_BYTES = 40  # that an SM reads a cycle when all SMs do
_WAVEFRONT_BYTES = 128  # that shared memory moves a cycle
_LATENCY = 2500  # of a block, in cycles: its start, the loads that it waits for, and its stores


@dataclass(frozen=True)
class Tile(ConfigNumbers):
    """The outputs of a block: rows and columns of an image, channels, and products of a warp."""

    filter: int
    stride: int
    width: int
    channels: int
    rows: int
    columns: int
    tiles: int

    @property
    def inner(self) -> int:
        """Return the input channels of an output channel in a product: those of a group, at least eight."""
        return max(self.width, _VECTOR)

    @property
    def products(self) -> int:
        """Return the products of 16 pixels and eight channels: two units each."""
        return ceil(self.filter**2 * self.inner / (2 * _VECTOR))

    @property
    def threads(self) -> int:
        """Return the threads of a block."""
        return 32 * self.channels // _VECTOR * self.rows * self.columns // (_PIXELS * self.tiles)

    @property
    def registers(self) -> int:
        """Return the registers of a thread: weights, sums, addresses, operands of a product, and 32 others."""
        return 2 * self.products + 5 * self.tiles + 8 + 32

    @property
    def shared_bytes(self) -> int:
        """Return the shared memory of a block: its inputs."""
        rows, columns = ((side - 1) * self.stride + self.filter for side in (self.rows, self.columns))
        return rows * columns * (self.channels // _VECTOR | 1) * 16


class CudaGroupedConv2d(TensorCoreFamily[Conv2d]):
    """Convolution with narrow groups, depthwise too, on tensor cores."""

    name = "cuda_grouped_conv2d"
    operator = Conv2d
    template = "cuda/grouped_conv2d.cu.j2"
    parameters = (
        Parameter("filter", _FILTERS, "side of the filter"),
        Parameter("stride", _STRIDES, "stride of both axes"),
        Parameter("width", _WIDTHS, "channels of a group"),
        Parameter("channels", (16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128), "channels of a block"),
        Parameter("rows", (4, 7, 8, 14, 16), "output rows of a block"),
        Parameter("columns", (8, 16, 32), "output columns of a block"),
        Parameter("tiles", (2, 4, 8), "products of a warp: 16 pixels each"),
    )
    compile_seconds = (0.4, 0.2)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        tile = Tile.from_config(config)
        yield require(
            tile.channels % tile.inner == 0, f"{tile.channels} channels of a block are no whole groups of {tile.inner}"
        )
        pixels = _PIXELS * tile.tiles
        yield require(
            tile.rows * tile.columns % pixels == 0, f"{tile.rows}x{tile.columns} pixels are no whole warps of {pixels}"
        )
        yield require(64 <= tile.threads <= 512, f"a block must have 64 to 512 threads; it has {tile.threads}")
        yield require_registers(arch, tile.threads, tile.registers, _MAX_REGISTERS)
        yield require_shared(arch, tile.shared_bytes)

    def unsupported(self, problem: Conv2d) -> Rules:
        width = problem.c // problem.groups
        yield require(problem.c == problem.k and problem.groups > 1, "c and k must be equal, with several groups")
        yield require(width in _WIDTHS, f"a group must have {_WIDTHS} channels; it has {width}")
        yield require(problem.c % _VECTOR == 0, f"the channels must be a multiple of {_VECTOR}")
        yield require_square_window(problem, _FILTERS, _STRIDES)

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Conv2d | None
    ) -> Sequence[Value]:
        if parameter.name == "channels":  # whole groups
            inner = max(int(chosen["width"]), _VECTOR)
            fitting = tuple(value for value in parameter.values if int(value) % inner == 0)
            return tuple(value for value in fitting if problem is None or int(value) < 2 * max(problem.c, 32))
        if problem is None:
            return parameter.values
        if parameter.name == "rows":  # no tile is more than half empty, if a smaller one exists
            return tuple(value for value in parameter.values if int(value) < 2 * max(problem.p, 4))
        if parameter.name == "columns":
            return tuple(value for value in parameter.values if int(value) < 2 * max(problem.q, 8))
        return super().candidate_values(parameter, chosen, arch, dtype, problem)

    def decided(self, problem: Conv2d) -> Mapping[str, Value]:
        return {"filter": problem.r, "stride": problem.stride[0], "width": problem.c // problem.groups}

    def cost(self, problem: Conv2d, config: Config, arch: Architecture) -> float:
        """Estimate cycles: rounds of blocks, each bound by products, shared memory or loads, plus waits.

        The constants are estimates, not fitted.
        """
        tile = Tile.from_config(config)
        tiles = problem.n * ceil(problem.p / tile.rows) * ceil(problem.q / tile.columns)
        blocks = tiles * ceil(problem.c / tile.channels)
        resident = arch.resident_blocks(tile.threads, tile.registers, tile.shared_bytes)
        sharing = min(resident, ceil(blocks / arch.processors))
        count = tile.threads // 32 * tile.tiles * tile.products
        products = count * 16 * 16 * 8 / (arch.mma_rate or 512)
        read = count * 512 * tile.stride / _WAVEFRONT_BYTES + tile.shared_bytes / _WAVEFRONT_BYTES
        moved = (tile.shared_bytes + 2 * tile.rows * tile.columns * tile.channels) / _L2_BYTES
        return ceil(blocks / (arch.processors * resident)) * (sharing * max(products, read, moved) + _LATENCY)

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**config, "threads": Tile.from_config(config).threads}

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "krsc"}


FAMILIES = (CudaGroupedConv2d(),)
