"""Two convolutions of a block in one kernel; fp16 and bf16, NHWC: templates/cuda/expand_depthwise.cuh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from autotune.core import Architecture
from autotune.families.base import Config, ConfigNumbers, Launch, Parameter, Rules, Value, require
from autotune.families.cuda.common import TensorCoreFamily
from autotune.families.cuda.rules import require_shared
from autotune.ir import DTYPES, Epilogue
from autotune.ir.operators import ExpandDepthwise

_FILTERS, _STRIDES = (3, 5, 7), (1, 2)
_VECTOR, _PADDING = 8, 8  # kVector and kPadding of the template
_PARTS = (1, 2, 4, 8, 16)
_MAX_REGISTERS = 168  # of a thread's sums and one row of pixels; addresses and weights take the rest of 255


@dataclass(frozen=True)
class Tile(ConfigNumbers):
    """A config's numbers: the outputs of a block, and the wide channels that it computes at a time (chunk)."""

    tile_h: int
    tile_w: int
    chunk: int
    filter: int
    stride: int
    threads: int

    @property
    def columns(self) -> int:
        """Return the neighbouring output pixels of a thread: they share the pixels that they read."""
        return next(columns for columns in (7, 4) if self.tile_w % columns == 0)

    @property
    def halo(self) -> tuple[int, int]:
        """Return height and width of the input that a tile reads."""
        return ((self.tile_h - 1) * self.stride + self.filter, (self.tile_w - 1) * self.stride + self.filter)

    @property
    def rows(self) -> int:
        """Return the pixels of the input in shared memory: kRows of the template."""
        pixels = self.halo[0] * self.halo[1]
        together = 32 if ceil(pixels / 16) >= 2 * (self.threads // 32) else 16
        return ceil(pixels / together) * together

    def registers(self) -> int:
        """Return the registers of a thread for its sums and one row of pixels, or for the sums of the product."""
        line = (self.columns - 1) * self.stride + self.filter
        pixels = ceil(self.halo[0] * self.halo[1] / 16)
        product = self.chunk // 2 * (2 if pixels >= 2 * (self.threads // 32) else 1)
        return max(_VECTOR * self.columns + 4 * line, product + 24)

    def shared_bytes(self, channels: int, dtype: str) -> int:
        """Return the shared memory of a block."""
        pitch = ceil(channels / 16) * 16 + _PADDING
        elements = (self.rows + self.chunk) * pitch + self.rows * (self.chunk + _PADDING)
        return elements * DTYPES[dtype].itemsize


def _tiles(problem: ExpandDepthwise, tile: Tile) -> int:
    return problem.n * ceil(problem.p / tile.tile_h) * ceil(problem.q / tile.tile_w)


def _cycles(problem: ExpandDepthwise, tile: Tile, parts: int, arch: Architecture) -> float:
    """Estimate cycles: rounds of blocks, each bound by its products, its depthwise convolution, and its input.

    The weights are estimates from instruction rates, not fitted.
    """
    shared = tile.shared_bytes(problem.c, problem.dtype)
    resident = arch.resident_blocks(tile.threads, tile.registers() + 80, shared)
    channels = ceil(problem.c / 16) * 16
    product = tile.rows * tile.chunk * channels / (arch.mma_rate or 512)
    outputs = tile.tile_h * tile.tile_w * tile.chunk
    line = ((tile.columns - 1) * tile.stride + tile.filter) / tile.columns
    depthwise = outputs * (tile.filter**2 / 128 + tile.filter * line / 64)
    chunks = ceil(problem.k / tile.chunk)
    blocks = _tiles(problem, tile) * parts
    busy = min(resident, ceil(blocks / arch.processors))
    alone = 1500 + tile.rows * channels / 32 + ceil(chunks / parts) * (product + depthwise + 400)
    return ceil(blocks / (arch.processors * resident)) * alone * max(1.0, busy / 2)


class CudaExpandDepthwise(TensorCoreFamily[ExpandDepthwise]):
    """A widening 1x1 convolution and the depthwise convolution after it, by mma.sync."""

    name = "cuda_expand_depthwise"
    operator = ExpandDepthwise
    template = "cuda/expand_depthwise.cu.j2"
    parameters = (
        Parameter("filter", _FILTERS, "side of the depthwise filter"),
        Parameter("stride", _STRIDES, "stride of the depthwise convolution"),
        Parameter("tile_h", (4, 7, 8, 14), "output rows a block"),
        Parameter("tile_w", (4, 7, 8, 14, 16), "output columns a block"),
        Parameter("chunk", (32, 64), "wide channels at a time"),
        Parameter("threads", (128, 256), "threads a block"),
    )
    launch_parameters = (Parameter("parts", _PARTS, "blocks that share the wide channels of a tile"),)
    compile_seconds = (0.9, 1.2)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        tile = Tile.from_config(config)
        yield require(epilogue.anchors == ExpandDepthwise.anchors, "the epilogue must have the step conv")
        yield require(
            not epilogue.accesses_tensors_early, "steps before the depthwise convolution must not read tensors"
        )
        yield require(
            tile.registers() <= _MAX_REGISTERS,
            f"sums and pixels of a thread must fit {_MAX_REGISTERS} registers; they take {tile.registers()}",
        )
        least = tile.shared_bytes(_VECTOR, dtype)
        yield require(
            least <= arch.block_shared,
            f"a block must fit {arch.block_shared} bytes of shared memory; it takes {least} or more",
        )

    def unsupported(self, problem: ExpandDepthwise) -> Rules:
        yield require(problem.c % _VECTOR == 0 and problem.k % _VECTOR == 0, f"c and k must be multiples of {_VECTOR}")
        yield require(
            problem.r == problem.s in _FILTERS, f"the filter must be square, of side {', '.join(map(str, _FILTERS))}"
        )
        yield require(
            problem.stride[0] == problem.stride[1] in _STRIDES, "the stride must be 1 or 2, the same along both axes"
        )

    def decided(self, problem: ExpandDepthwise) -> Mapping[str, Value]:
        return {"filter": problem.r, "stride": problem.stride[0]}

    def unfit(self, problem: ExpandDepthwise, config: Config, arch: Architecture) -> Rules:
        tile = Tile.from_config(config)
        yield from super().unfit(problem, config, arch)
        yield require_shared(arch, tile.shared_bytes(problem.c, problem.dtype))
        yield require(
            tile.tile_h < 2 * problem.p and tile.tile_w < 2 * problem.q, "a smaller tile wastes less of the block"
        )

    def launches(self, problem: ExpandDepthwise, config: Config, arch: Architecture) -> list[Launch]:
        """Return numbers of blocks that share a tile, as long as they find multiprocessors that are not busy."""
        tile = Tile.from_config(config)
        chunks, tiles = ceil(problem.k / tile.chunk), _tiles(problem, tile)
        worth = [parts for parts in _PARTS if parts == 1 or (parts <= chunks and parts * tiles <= 8 * arch.processors)]
        return [{"parts": parts} for parts in sorted(worth, key=lambda parts: _cycles(problem, tile, parts, arch))]

    def cost(self, problem: ExpandDepthwise, config: Config, arch: Architecture) -> float:
        """Estimate the cycles of the best launch, which is the first."""
        return _cycles(problem, Tile.from_config(config), self.launches(problem, config, arch)[0]["parts"], arch)

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**config, "columns": Tile.from_config(config).columns}

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight2": "rsck"}


FAMILIES = (CudaExpandDepthwise(),)
