"""Inverted residual blocks by mma.sync; fp16 and bf16, NHWC: templates/cuda/inverted_residual.cuh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from autotune.core import Architecture, ceil_div, round_up
from autotune.families.base import Config, ConfigNumbers, Parameter, Rules, Value, require
from autotune.families.cuda.common import TensorCoreFamily
from autotune.families.cuda.rules import require_clusters, require_shared
from autotune.ir import DTYPES, Epilogue
from autotune.ir.operators import InvertedResidual

_FILTERS, _STRIDES = (3, 5, 7), (1, 2)
_COLUMNS = (16, 32, 64, 96, 128, 160, 192, 256, 320)
# Shapes that are far from these leave threads idle or multiply many pixels twice.
_WIDTHS = {4: (7, 8, 14, 16), 7: (7, 14), 8: (8, 16), 14: (14,)}  # tile_h -> tile_w
_STRIPS = {4: (1, 2), 7: (1, 2), 8: (1, 2), 14: (2, 4)}  # tile_h -> strip
_WHOLE_IMAGES = ((7, 7), (8, 8))  # tiles that a block may have of several images
_VECTOR, _PADDING, _SUM_PADDING = 8, 8, 8  # kVector, kPadding, and kSumPitch less kColumns of the template
_MAX_REGISTERS = 190  # of a thread's sums and operands; addresses and the like take the rest of 255
_OPERAND_REGISTERS = 24  # of a product: operands and addresses
_SPARE_REGISTERS = 36  # that ptxas gets beside the estimate: with 34, some kernels spill
_ADDRESS_REGISTERS, _KEPT_TAPS = 16, 12  # of the depthwise convolution; other taps are read again

# For the cost, in cycles of an SM: estimates from instruction rates, not fitted.
_LANES = 128  # instructions of a thread that an SM executes in a cycle
_CONVERSION = 2  # a conversion to float32 has half of the rate
_STEP_INSTRUCTIONS = 5  # for each element that steps are applied to: a bias, a clamp, rounding, and the store
_MATRIX_LOAD = 4  # of a warp: 512 bytes of shared memory
_MEMORY_BYTES_A_CYCLE, _L2_BYTES_A_CYCLE = 13, 35
_START, _CLUSTER, _CHUNK_WAIT = 2500, 1500, 500
# Cycles without an instruction over those with one, times the warps of an SM. By the times of cuda_expand_depthwise on
# an H200, whose phases are the same, an SM with 8 to 12 warps executes half of the instructions that it could.
_STALLS = 7


@dataclass(frozen=True)
class Depthwise:
    """The outputs of the depthwise convolution that a thread computes together.

    Attributes:
        strip: Rows.
        neighbours: Columns.
        depth: Channels.
        filter: Side of the filter.
        stride: Stride.
    """

    strip: int
    neighbours: int
    depth: int
    filter: int
    stride: int

    @property
    def line(self) -> int:
        """Return the pixels of a row that the outputs depend on."""
        return (self.neighbours - 1) * self.stride + self.filter

    @property
    def registers(self) -> int:
        """Return the registers of a thread: sums, a row of pixels in both formats, and a part of the filters."""
        pixels, taps = self.line * 3 // 2, min(self.filter**2, _KEPT_TAPS)
        return (self.strip * self.neighbours + pixels + taps) * self.depth + _ADDRESS_REGISTERS

    @property
    def instructions(self) -> int:
        """Return an estimate of a thread's instructions: loads, conversions, multiply-adds and steps."""
        pixels = ((self.strip - 1) * self.stride + self.filter) * self.line
        taps, outputs = self.filter**2, self.strip * self.neighbours
        loads = (pixels + taps) * (1 + self.depth * _CONVERSION)
        return loads + outputs * self.depth * (taps + _STEP_INSTRUCTIONS) + 40


@dataclass(frozen=True)
class Tile(ConfigNumbers):
    """A config's numbers; the family's parameters say what they mean."""

    filter: int
    stride: int
    tile_h: int
    tile_w: int
    images: int
    chunk: int
    columns: int
    strip: int
    threads: int
    parts: int

    @property
    def warps(self) -> int:
        """Return the warps of a block."""
        return self.threads // 32

    @property
    def halo(self) -> tuple[int, int]:
        """Return height and width of the input that a tile depends on."""
        return ((self.tile_h - 1) * self.stride + self.filter, (self.tile_w - 1) * self.stride + self.filter)

    @property
    def row_tiles(self) -> int:
        """Return the tiles of 16 output pixels."""
        return ceil_div(self.images * self.tile_h * self.tile_w, 16)

    @property
    def expand(self) -> tuple[int, int]:
        """Return the tiles of 16 rows that a warp multiplies together in the first product, and kExpandWarps.

        Most tiles of small images are at borders. So the warps are shared out for a tile without one border along each
        axis: its other pixels are no rows of the product.
        """
        tall, wide = (size - self.filter // 2 for size in self.halo)
        tiles = ceil_div(self.images * tall * wide, 16)

        def work(shape: tuple[int, int]) -> tuple[int, int]:
            together, warps = shape
            rounds = ceil_div(tiles, together * self.warps // warps)
            columns = self.chunk // 16 // warps
            return rounds * together * columns, rounds * (together + columns)

        shares = [warps for warps in (1, 2, 3, 4) if self.warps % warps == 0 and self.chunk // 16 % warps == 0]
        return min(product((1, 2), shares), key=work)

    @property
    def project_warps(self) -> int:
        """Return the warps that share the columns of the last product: kProjectWarps."""
        return min((share for share in (1, 2, 4, 8) if self.warps % share == 0), key=self._project_work)

    def _project_work(self, share: int) -> tuple[int, int]:
        rows, columns = self._project_tiles(share)
        return rows * columns, rows + columns

    def _project_tiles(self, share: int) -> tuple[int, int]:
        """Return the tiles of 16 rows and of 16 columns of a warp."""
        return ceil_div(self.row_tiles, self.warps // share), ceil_div(self.columns // 16, share)

    @property
    def sums(self) -> int:
        """Return the registers of a thread for the sums of the last product."""
        rows, columns = self._project_tiles(self.project_warps)
        return 8 * rows * columns

    @property
    def depthwise(self) -> Depthwise | None:
        """Return the fastest outputs of a thread by estimate, of `strip` rows; None if none fit the registers."""
        return _depthwise(self)

    def depthwise_cycles(self, work: Depthwise) -> float:
        """Return an estimate of the cycles of a chunk's depthwise convolution."""
        units = self.chunk // work.depth * (self.tile_w // work.neighbours) * ceil_div(self.tile_h, work.strip)
        busy = ceil_div(units * self.images, 32)  # warps
        return ceil_div(busy, min(self.warps, 4)) * work.instructions * (32 * min(self.warps, 4) / _LANES)

    def registers(self) -> int:
        """Return the registers of a thread: sums of the last product beside those of the other phases."""
        together, warps = self.expand
        expand = together * (self.chunk // warps // 2 + 8) + _OPERAND_REGISTERS
        rows, _ = self._project_tiles(self.project_warps)
        work = self.depthwise
        return self.sums + max(expand, 4 * rows + _OPERAND_REGISTERS, work.registers if work else 0)

    def blocks(self, arch: Architecture) -> int:
        """Return the blocks of an SM for whose registers the kernel is compiled."""
        most = arch.sm_registers // self.threads // (self.registers() + _SPARE_REGISTERS)
        return max(1, min(most, 512 // self.threads))

    def input_rows(self, height: int, width: int) -> int:
        """Return the rows of the first product for the most pixels of the image in a tile: Params::rows."""
        together = 16 * self.expand[0]
        return round_up(self.images * height * width, together)

    def shared_bytes(self, rows: int, channels: int, dtype: str) -> int:
        """Return the shared memory of a block; rows: of the first product."""
        pitch, wide_pitch = round_up(channels, 16) + _PADDING, self.chunk + _PADDING
        share = self.project_warps
        row_tiles, column_tiles = self._project_tiles(share)
        operands = 16 * (row_tiles * self.warps // share + column_tiles * share)
        wide = self.images * self.halo[0] * self.halo[1] + 16 * self.expand[0]
        elements = (rows + self.chunk) * pitch + (operands + wide) * wide_pitch + self.filter**2 * self.chunk
        sums = 4 * 16 * self.row_tiles * (self.columns + _SUM_PADDING)
        return max(8 * rows + elements * DTYPES[dtype].itemsize, sums)


@cache
def _depthwise(tile: Tile) -> Depthwise | None:
    room = _MAX_REGISTERS - tile.sums
    shapes = product(
        (tile.strip,),
        (columns for columns in (4, 7, 8) if tile.tile_w % columns == 0),
        (depth for depth in (2, 4, 8) if tile.chunk % depth == 0),
    )
    fit = [work for shape in shapes if (work := Depthwise(*shape, tile.filter, tile.stride)).registers <= room]
    return min(fit, key=lambda work: (tile.depthwise_cycles(work), work.registers), default=None)


def _columns(problem: InvertedResidual) -> int:
    """Return the output channels of the kernels for a problem."""
    return next(columns for columns in _COLUMNS if problem.k <= columns)


def _most_inside(tile: int, halo: int, stride: int, outputs: int, size: int, pad: int) -> int:
    """Return the most pixels of the image along one axis that a tile depends on: most_inside of the template."""
    begins = (first * stride - pad for first in range(0, outputs, tile))
    return max(max(min(begin + halo, size) - max(begin, 0), 0) for begin in begins)


def _rows(problem: InvertedResidual, tile: Tile) -> int:
    """Return the rows of the first product of a block."""
    (tall, wide), (top, left) = tile.halo, problem.pad
    height = _most_inside(tile.tile_h, tall, tile.stride, problem.p, problem.h, top)
    return tile.input_rows(height, _most_inside(tile.tile_w, wide, tile.stride, problem.q, problem.w, left))


def _tiles(problem: InvertedResidual, tile: Tile) -> int:
    images = ceil_div(problem.n, tile.images)
    return images * ceil_div(problem.p, tile.tile_h) * ceil_div(problem.q, tile.tile_w)


def _chunk_cycles(tile: Tile, rows: int, depth: int, arch: Architecture) -> float:
    """Estimate the cycles of a chunk: both products, the depthwise convolution, and the steps between them."""
    together, share = tile.expand
    columns, groups = tile.chunk // 16 // share, rows // (16 * together)
    rounds = ceil_div(groups, tile.warps // share) * tile.warps
    expand = _product_cycles(rounds, together, columns, depth // 16, arch)
    steps = rounds // share * 16 * together * tile.chunk * _STEP_INSTRUCTIONS / _LANES
    project = _product_cycles(tile.warps, *tile._project_tiles(tile.project_warps), tile.chunk // 16, arch)
    work = tile.depthwise
    return expand + steps + project + (tile.depthwise_cycles(work) if work else 0)


def _product_cycles(warps: int, rows: int, columns: int, steps: int, arch: Architecture) -> float:
    """Estimate the cycles of products of warps, of (16 rows) x (16 columns) sums each."""
    mma = rows * columns * 16 * 16 * 16 / (arch.mma_rate or 1000)
    return warps * steps * max(mma, (rows + columns) * _MATRIX_LOAD)


class CudaInvertedResidual(TensorCoreFamily[InvertedResidual]):
    """The three convolutions of an inverted residual block in one kernel."""

    name = "cuda_inverted_residual"
    operator = InvertedResidual
    template = "cuda/inverted_residual.cu.j2"
    parameters = (
        Parameter("filter", _FILTERS, "side of the depthwise filter"),
        Parameter("stride", _STRIDES, "stride of the depthwise convolution"),
        Parameter("tile_h", tuple(_WIDTHS), "output rows a block"),
        Parameter("tile_w", (7, 8, 14, 16), "output columns a block"),
        Parameter("images", (1, 2), "images a block"),
        Parameter("chunk", (48, 64), "wide channels at a time"),
        Parameter("columns", _COLUMNS, "output channels, rounded up"),
        Parameter("strip", (1, 2, 4), "output rows of the depthwise convolution that a thread computes together"),
        Parameter("threads", (128, 256), "threads a block"),
        Parameter("parts", (1, 2, 4, 8), "blocks of a cluster, which share the wide channels of a tile"),
    )
    compile_seconds = (0.9, 1.6)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        tile = Tile.from_config(config)
        yield require(epilogue.anchors == InvertedResidual.anchors, "the epilogue must have the step conv twice")
        yield require(
            not epilogue.accesses_tensors_early, "steps before the last convolution must not read or write tensors"
        )
        yield require_clusters(arch, tile.parts)
        shape = tile.tile_h, tile.tile_w
        yield require(tile.tile_w in _WIDTHS[tile.tile_h], f"of {tile.tile_h} rows it has tiles of other widths")
        yield require(tile.strip in _STRIPS[tile.tile_h], f"of {tile.tile_h} rows it has strips of other heights")
        yield require(tile.images == 1 or shape in _WHOLE_IMAGES, "only small tiles can be those of several images")
        taken = tile.registers()
        yield require(
            tile.depthwise is not None and taken <= _MAX_REGISTERS,
            f"sums and operands of a thread must fit {_MAX_REGISTERS} registers; they take {taken} or more",
        )
        least = tile.shared_bytes(tile.input_rows(1, 1), _VECTOR, dtype)
        yield require(
            least <= arch.block_shared,
            f"a block must fit {arch.block_shared} bytes of shared memory; it takes {least} or more",
        )

    def unsupported(self, problem: InvertedResidual) -> Rules:
        sizes = problem.c, problem.hidden, problem.k
        yield require(all(size % _VECTOR == 0 for size in sizes), f"c, hidden and k must be multiples of {_VECTOR}")
        yield require(problem.k <= _COLUMNS[-1], f"k must be at most {_COLUMNS[-1]}: its sums are in registers")
        yield require(
            problem.r == problem.s in _FILTERS, f"the filter must be square, of side {', '.join(map(str, _FILTERS))}"
        )
        yield require(
            problem.stride[0] == problem.stride[1] in _STRIDES, "the stride must be 1 or 2, the same along both axes"
        )

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: InvertedResidual | None
    ) -> Sequence[Value]:
        if parameter.name == "parts" and (arch.capability or 0) < 90:
            return parameter.values[:1]
        if parameter.name in ("tile_w", "strip"):
            return (_WIDTHS if parameter.name == "tile_w" else _STRIPS)[int(chosen["tile_h"])]
        if parameter.name == "images" and (chosen["tile_h"], chosen["tile_w"]) not in _WHOLE_IMAGES:
            return parameter.values[:1]
        return super().candidate_values(parameter, chosen, arch, dtype, problem)

    def decided(self, problem: InvertedResidual) -> Mapping[str, Value]:
        return {"filter": problem.r, "stride": problem.stride[0], "columns": _columns(problem)}

    def unfit(self, problem: InvertedResidual, config: Config, arch: Architecture) -> Rules:
        tile = Tile.from_config(config)
        yield from super().unfit(problem, config, arch)
        too_tall = tile.tile_h >= 2 * problem.p and tile.tile_h > min(_WIDTHS)
        too_wide = tile.tile_w >= 2 * problem.q and tile.tile_w > min(_WIDTHS[tile.tile_h])
        yield require(not too_tall and not too_wide, "a smaller tile wastes less of the block")
        yield require(
            tile.images == 1 or (tile.tile_h >= problem.p and tile.tile_w >= problem.q and tile.images <= problem.n),
            "a block takes several images only if they are there and a tile holds a whole one",
        )
        chunks = ceil_div(problem.hidden, tile.chunk)
        yield require(tile.parts <= chunks, "each block of a cluster needs a chunk of the wide channels")
        yield require(
            tile.parts == 1 or tile.parts * _tiles(problem, tile) <= 8 * arch.processors,
            "without clusters there are blocks enough",
        )
        yield require_shared(arch, tile.shared_bytes(_rows(problem, tile), problem.c, problem.dtype))

    def cost(self, problem: InvertedResidual, config: Config, arch: Architecture) -> float:
        """Estimate cycles: the work of the blocks that are resident together, or the latency of one of them.

        It is an estimate from instruction rates and bandwidths, which was not fitted to measurements.
        """
        tile = Tile.from_config(config)
        rows, depth = _rows(problem, tile), round_up(problem.c, 16)
        shared = tile.shared_bytes(rows, problem.c, problem.dtype) + arch.reserved_shared
        most = arch.sm_registers // (tile.threads * tile.blocks(arch))
        by_registers = arch.sm_registers // (round_up(min(tile.registers() + 60, 255, most), 8) * tile.threads)
        resident = max(1, min(arch.sm_shared // shared, arch.sm_threads // tile.threads, by_registers))
        blocks, processors = _tiles(problem, tile) * tile.parts, arch.processors_for(tile.parts)
        chunks = ceil_div(ceil_div(problem.hidden, tile.chunk), tile.parts)
        work = chunks * _chunk_cycles(tile, rows, depth, arch)
        work += 16 * tile.row_tiles * tile.columns * (8 * tile.parts + 16) / _LANES / tile.parts  # the last steps
        size = DTYPES[problem.dtype].itemsize
        weights = chunks * tile.chunk * (depth + tile.filter**2 + tile.columns) * size / _L2_BYTES_A_CYCLE
        memory = rows * problem.c * size / _L2_BYTES_A_CYCLE + problem.bytes / blocks / _MEMORY_BYTES_A_CYCLE
        work = max(work, weights + memory)
        fixed = _START + (_CLUSTER if tile.parts > 1 else 0) + chunks * _CHUNK_WAIT + memory

        def together(count: int) -> float:
            """Return the cycles of some blocks that are resident together."""
            stalls = _STALLS / tile.warps
            return max(fixed + work * (1 + stalls), work * (count + stalls))

        full, rest = divmod(blocks, processors * resident)
        return full * together(resident) + (together(ceil_div(rest, processors)) if rest else 0)

    def label(self, config: Config) -> str:
        tile = Tile.from_config(config)
        images = f"{tile.images}x" if tile.images > 1 else ""
        parts = f" / {tile.parts}" if tile.parts > 1 else ""
        tiles = f"{images}{tile.tile_h}x{tile.tile_w} chunk {tile.chunk}>{tile.columns}"
        return f"{tiles} strip {tile.strip} threads {tile.threads}{parts}"

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        tile = Tile.from_config(config)
        together, expand_warps = tile.expand
        work = tile.depthwise
        assert work is not None
        derived = {"together": together, "expand_warps": expand_warps, "project_warps": tile.project_warps}
        derived["blocks"] = tile.blocks(arch)
        return {**config, **derived, "neighbours": work.neighbours, "depth": work.depth}

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight2": "rsck"}


FAMILIES = (CudaInvertedResidual(),)
