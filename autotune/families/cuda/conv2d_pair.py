"""Two convolutions in one kernel by mma.sync; fp16 and bf16, NHWC: templates/cuda/conv2d_pair.cuh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, ConfigNumbers, Parameter, Rules, Value, require
from autotune.families.cuda.common import TensorCoreFamily
from autotune.families.cuda.rules import require_registers, require_shared
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2dPair

_FILTERS, _STRIDES, _ROWS = (1, 3), (1, 2), (1, 2, 4)
_SIDES = (4, 7, 8, 14, 16, 28, 32)
_MOST_PIXELS, _MOST_PASSES = 1024, 4  # of a tile: more neither fit shared memory nor fill more multiprocessors
_MOST_REGISTERS = 250  # of 255: the estimate leaves out a few addresses
_ELEMENT_BYTES = 2

# For the cost, in cycles and bytes a cycle of an SM: those that cuda_conv2d was fitted with, not fitted to this kernel.
_LOADED_BYTES, _MEMORY_BYTES = 28, 18  # from L2 in the main loop; of an SM's share of device memory
_START_CYCLES, _WAIT_CYCLES, _PRODUCT_CYCLES = 3000, 150, 50  # of a block; of a step and of each 16 of its depth


@dataclass(frozen=True)
class _Part:
    """One of the convolutions of a tile.

    Attributes:
        high: Rows of an image that are computed.
        wide: Columns of them.
        blocks: Blocks of 16 pixels.
        passes: Passes over the pixels.
        rows: Blocks of 16 pixels of a warp in a pass.
        pixels: Pixels of a pass, including those that only fill it.
    """

    high: int
    wide: int
    blocks: int
    passes: int
    rows: int
    pixels: int


@dataclass(frozen=True)
class Tile(ConfigNumbers):
    """A config by name, and what follows from it, as in the template."""

    filter1: int
    stride1: int
    filter: int
    stride: int
    tile_h: int
    tile_w: int
    whole: int
    images: int
    warps_m: int
    warps_n: int
    rows: int
    columns: int
    depth: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_m * self.warps_n

    @property
    def channels(self) -> int:
        """Output channels of a slice: kN of the template."""
        return self.warps_n * self.columns

    @property
    def vector(self) -> int:
        """Neighbouring channels of a thread's sums."""
        return 8 if self.columns % 32 == 0 else 4

    @property
    def halo(self) -> tuple[int, int]:
        """Height and width of the hidden pixels that a tile reads."""
        return ((self.tile_h - 1) * self.stride + self.filter, (self.tile_w - 1) * self.stride + self.filter)

    def _part(self, high: int, wide: int) -> _Part:
        blocks = ceil_div(self.images * high * wide, 16)
        passes = ceil_div(blocks, self.warps_m * self.rows)
        rows = ceil_div(blocks, self.warps_m * passes)
        return _Part(high=high, wide=wide, blocks=blocks, passes=passes, rows=rows, pixels=16 * self.warps_m * rows)

    @cached_property
    def first(self) -> _Part:
        """The hidden tile."""
        high, wide = self.halo
        high = min(high, self.tile_h * self.stride) if self.whole == 2 else high
        wide = min(wide, self.tile_w * self.stride) if self.whole >= 1 else wide
        return self._part(high, wide)

    @cached_property
    def second(self) -> _Part:
        """The output tile."""
        return self._part(self.tile_h, self.tile_w)

    @property
    def input(self) -> tuple[int, int]:
        """Height and width of the input pixels that a tile reads."""
        first, stride, side = self.first, self.stride1, self.filter1
        return ((first.high - 1) * stride + side, (first.wide - 1) * stride + side)

    @property
    def registers(self) -> int:
        """Registers of a thread: sums, operands of a product, and 64 others."""
        rows = max(self.first.rows, self.second.rows)
        return rows * self.columns // 2 + 5 * rows + self.columns // 4 + 64

    def resident(self, arch: Architecture) -> int:
        """Return how many blocks the compiler must leave registers for on an SM."""
        return max(1, min(4, arch.sm_registers // (self.registers * self.threads)))

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a step."""
        rows = self.channels + (self.first.pixels if self.filter1 == 1 else 0)
        return rows * (self.depth * _ELEMENT_BYTES + 16)

    def shared_bytes(self, c: int, hidden: int) -> int:
        """Return the shared memory of a block for these channels of the input and of the hidden tensor."""
        first, second = self.first, self.second
        taken = self._patch_bytes(self.halo, self.stride, second, hidden) + self.stages * self.stage_bytes
        listed = 4 * first.passes * first.pixels  # the pixels of a 1x1 convolution
        return taken + (self._patch_bytes(self.input, self.stride1, first, c) if self.filter1 > 1 else listed)

    def _patch_bytes(self, size: tuple[int, int], stride: int, reader: _Part, channels: int) -> int:
        """Return the bytes of a patch of images in shared memory: Patch::make of the template."""
        high, wide = size
        units = channels // 8 + 1
        row = (ceil_div(wide, 2) * 2 if stride == 2 else wide) * units
        row += next((more for more in range(8) if (stride * (row + more) - reader.wide * units) % 8 == 0), 0)
        image = high * row
        image += (reader.high * stride * row - image) % 8
        return 16 * self.images * image


def _end(outputs: int) -> int:
    """Return the least side of a tile of which more than half would be empty, and a smaller tile would not."""
    return max(2 * outputs, _SIDES[0] + 1)


def _is_held(problem: Conv2dPair, tile: Tile, axis: int) -> bool:
    """Return whether a tile that is whole along an axis holds all that the outputs read."""
    outputs, hidden = ((problem.p, problem.hidden_h), (problem.q, problem.hidden_w))[axis]
    side = (tile.tile_h, tile.tile_w)[axis]
    needed = min(hidden, (outputs - 1) * tile.stride + tile.filter - problem.pad[axis])
    return outputs <= side and needed <= min(side * tile.stride, (side - 1) * tile.stride + tile.filter)


def _products(problem: Conv2dPair, tile: Tile) -> list[tuple[_Part, int, int]]:
    """Return (part, depth, slices) of both convolutions."""
    return [
        (tile.first, problem.first_r * problem.first_s * problem.c, ceil_div(problem.hidden, tile.channels)),
        (tile.second, problem.r * problem.s * problem.hidden, ceil_div(problem.k, tile.channels)),
    ]


class CudaConv2dPair(TensorCoreFamily[Conv2dPair]):
    """Two convolutions in one kernel, with the tensor between them in shared memory."""

    name = "cuda_conv2d_pair"
    operator = Conv2dPair
    template = "cuda/conv2d_pair.cu.j2"
    parameters = (
        Parameter("filter1", _FILTERS, "side of the first filter"),
        Parameter("stride1", _STRIDES, "stride of the first convolution"),
        Parameter("filter", _FILTERS, "side of the second filter"),
        Parameter("stride", _STRIDES, "stride of the second convolution"),
        Parameter("tile_h", (4, 7, 8, 14, 16, 32), "output rows of a tile"),
        Parameter("tile_w", _SIDES, "output columns of a tile"),
        Parameter("whole", (0, 1, 2), "axes of which a tile has the whole image: none, the width, both"),
        Parameter("images", (1, 2, 4, 8), "images of a tile"),
        Parameter("warps_m", (1, 2, 4, 8), "warps along the pixels of a tile"),
        Parameter("warps_n", (1, 2, 4), "warps along the channels of a slice"),
        Parameter("rows", _ROWS, "most blocks of 16 pixels of a warp at a time"),
        Parameter("columns", (16, 32, 64), "channels of a warp at a time"),
        Parameter("depth", (32, 64, 144), "weights of a filter a step"),
        Parameter("stages", (2, 3), "buffers of weights"),
    )
    compile_seconds = (1.0, 1.5)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        tile = Tile.from_config(config)
        yield require(epilogue.anchors == Conv2dPair.anchors, "the epilogue must have the step conv")
        yield require(not epilogue.accesses_tensors_early, "steps before the second convolution must not read tensors")
        yield require(tile.threads in (128, 256), f"a block must have 128 or 256 threads; it has {tile.threads}")
        yield require(tile.images == 1 or tile.whole == 2, "several images must be whole")
        pixels = tile.images * tile.tile_h * tile.tile_w
        yield require(pixels <= _MOST_PIXELS, f"a tile must have at most {_MOST_PIXELS} pixels; it has {pixels}")
        most = _MOST_PASSES if tile.rows == _ROWS[-1] else 1
        yield require(
            tile.first.passes <= most,
            f"a tile must take at most {most} passes, and one unless a warp has {_ROWS[-1]} rows; "
            f"it takes {tile.first.passes}",
        )
        yield require(
            tile.first.blocks > tile.warps_m * tile.rows // 2 or (tile.rows == 1 and tile.warps_m <= 4),
            "half as many rows or warps must not hold the hidden tile",
        )
        yield require_registers(arch, tile.threads, tile.registers, _MOST_REGISTERS)
        least = tile.shared_bytes(16, 16)
        yield require(
            least <= arch.block_shared,
            f"a block must fit {arch.block_shared} bytes of shared memory; it takes {least} or more",
        )

    def unsupported(self, problem: Conv2dPair) -> Rules:
        filters = ((problem.first_r, problem.first_s), (problem.r, problem.s))
        square = all(r == s in _FILTERS for r, s in filters)
        yield require(square, f"the filters must be square, of side {' or '.join(map(str, _FILTERS))}")
        yield require(filters != ((1, 1), (1, 1)), "one of the filters must have a window: use pointwise_pair")
        strides = (problem.first_stride, problem.stride)
        yield require(all(h == w in _STRIDES for h, w in strides), "strides must be 1 or 2, the same along both axes")
        yield require(
            problem.stride == (1, 1) or (problem.first_stride == (1, 1) and problem.r > 1),
            "the second stride must be 1 behind a first stride of 2, and with a 1x1 filter",
        )
        yield require(max(problem.pad) < problem.r, "the second padding must be less than the filter")
        unit = 16 if problem.first_r > 1 else 8
        yield require(problem.c % unit == 0, f"c must be a multiple of {unit}")
        yield require(problem.hidden % 16 == 0 and problem.k % 8 == 0, "hidden must be a multiple of 16, and k of 8")

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Conv2dPair | None
    ) -> tuple[Value, ...]:
        def possible(value: int) -> bool:  # noqa: PLR0911 -- a table
            match parameter.name:
                case "filter":
                    return value > 1 or chosen["filter1"] != 1
                case "stride":
                    return value == 1 or (chosen["stride1"] == 1 and chosen["filter"] != 1)
                case "tile_h" if problem:
                    return value < _end(problem.p)
                case "tile_w":
                    high = int(chosen["tile_h"])
                    sides = high <= value <= 4 * high and (high == 4 or (high % 7 == 0) == (value % 7 == 0))
                    return sides and high * value <= _MOST_PIXELS and (not problem or value < _end(problem.q))
                case "whole":
                    across = not problem or int(chosen["tile_w"]) >= problem.q
                    down = not problem or int(chosen["tile_h"]) >= problem.p
                    return value == 0 or (across and (value == 1 or down))
                case "images":
                    pixels = int(chosen["tile_h"]) * int(chosen["tile_w"]) * value
                    most = problem.n if problem else value
                    return value == 1 or (chosen["whole"] == 2 and pixels <= _MOST_PIXELS // 2 and value <= most)
                case "warps_n":
                    return int(chosen["warps_m"]) * value in (4, 8)
                case "rows":  # neither idle warps nor more passes than needed: see `illegal`
                    pixels = int(chosen["tile_h"]) * int(chosen["tile_w"]) * int(chosen["images"])
                    return 16 * int(chosen["warps_m"]) * value >= pixels or value == _ROWS[-1]
                case "columns" if problem:
                    return int(chosen["warps_n"]) * value < 2 * max(problem.hidden, problem.k)
            return True

        values = super().candidate_values(parameter, chosen, arch, dtype, problem)
        return tuple(value for value in values if possible(int(value)))

    def decided(self, problem: Conv2dPair) -> Mapping[str, Value]:
        first = {"filter1": problem.first_r, "stride1": problem.first_stride[0]}
        return {**first, "filter": problem.r, "stride": problem.stride[0]}

    def unfit(self, problem: Conv2dPair, config: Config, arch: Architecture) -> Rules:
        tile = Tile.from_config(config)
        yield from super().unfit(problem, config, arch)
        held = [_is_held(problem, tile, axis) for axis in (0, 1)]
        yield require((tile.whole < 1 or held[1]) and (tile.whole < 2 or held[0]), "the tile must hold the whole image")
        most = 2 if all(held) else int(held[1])
        yield require(tile.whole == most or tile.filter == 1, "a tile that is known to hold the image computes less")
        yield require_shared(arch, tile.shared_bytes(problem.c, problem.hidden))
        yield require(
            tile.tile_h < _end(problem.p) and tile.tile_w < _end(problem.q), "a smaller tile wastes less of the block"
        )
        yield require(
            tile.channels < 2 * max(problem.hidden, problem.k), "fewer channels at a time waste less of the block"
        )

    def cost(self, problem: Conv2dPair, config: Config, arch: Architecture) -> float:
        """Estimate cycles: rounds of blocks, whose steps are bound by products, shared memory, loads or latency.

        It is an estimate: the rates are those of cuda_conv2d, not fitted to kernels of this family. The products
        include the border of the hidden tile that neighbouring tiles compute too, and rows and channels that only fill
        a tile. Every block reads all weights, which come from L2.
        """
        tile = Tile.from_config(config)
        shared = tile.shared_bytes(problem.c, problem.hidden) + arch.reserved_shared
        resident = max(1, min(arch.sm_shared // shared, arch.sm_threads // tile.threads, tile.resident(arch)))
        blocks = ceil_div(problem.n, tile.images) * ceil_div(problem.p, tile.tile_h) * ceil_div(problem.q, tile.tile_w)
        sharing = min(resident, ceil_div(blocks, arch.processors))
        alone = 0.0
        for index, (part, depth, slices) in enumerate(_products(problem, tile)):
            steps = slices * part.passes * ceil_div(depth, tile.depth)
            each = min(tile.depth, depth)
            products = part.pixels * tile.channels * each / (arch.mma_rate or 1000)
            read = tile.threads // 32 * each / 16 * (part.rows * 512 + tile.columns * 32) / 128
            rows = tile.channels + (part.pixels if index == 0 and tile.filter1 == 1 else 0)
            loaded = rows * each * _ELEMENT_BYTES / _LOADED_BYTES
            waits = (1.4 if tile.stages == 2 else 1.0) * (_WAIT_CYCLES + _PRODUCT_CYCLES * each / 16)
            alone += steps * max(sharing * max(products, read, loaded), waits)
            alone += sharing * part.passes * part.pixels * tile.channels * slices / (6 if index else 12)
        if tile.filter1 > 1:
            alone += sharing * tile.images * tile.input[0] * tile.input[1] * problem.c * _ELEMENT_BYTES / _LOADED_BYTES
        rounds = ceil_div(blocks, arch.processors * resident)
        memory = problem.bytes / (_MEMORY_BYTES * arch.processors)
        return max(rounds * (_START_CYCLES + alone), _START_CYCLES + memory)

    def label(self, config: Config) -> str:
        x = Tile.from_config(config)
        warps = f"{x.warps_m}x{x.warps_n} warps of {16 * x.rows}x{x.columns}"
        return f"{x.images}x{x.tile_h}x{x.tile_w} whole {x.whole} {warps} depth {x.depth} s{x.stages}"

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        tile = Tile.from_config(config)
        return {**config, "threads": tile.threads, "vector": tile.vector, "resident": tile.resident(arch)}

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight1": "krsc", "weight2": "krsc"}


FAMILIES = (CudaConv2dPair(),)
