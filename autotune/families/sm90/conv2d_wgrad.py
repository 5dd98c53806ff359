"""Weight gradient of a convolution for Hopper (templates/sm90/wgrad/conv2d.cuh), and how blocks share its sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Launch, Parameter, Rules, Value, require
from autotune.families.sm90.common import LOADED_BYTES_A_CYCLE, HopperFamily
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2dWgrad

MAX_SPLITS = 64
"""Most clusters that split a tile's pixels."""
_CHUNK = 64  # channels of a box
_MAX_GROUPS = 3  # warpgroups that multiply
_MAX_SUMS = {1: 128, 2: 128, 3: 96}  # registers of a thread, by warpgroups
_MAX_COLUMNS = 256  # of wgmma, and pixels of a TMA box
_MAX_SLOTS = 16
_BARRIER_BYTES, _ALIGNMENT = 8, 1024

# For the cost, in cycles: estimates for an H200, not fitted.
_END_CYCLES = 4000  # of a block
_REDUCE_BYTES_A_CYCLE = 40  # of the sums that blocks exchange


def split_counts(parts: int, tiles: int, slices: int, arch: Architecture, peers: int = 1) -> list[int]:
    """Return the clusters a tile that fill the GPU once, and half as many.

    Args:
        parts: Parts of the pixels, of which each block has one at least.
        tiles: Tiles of the problem.
        slices: Blocks of a cluster that split a tile's pixels.
        arch: The architecture.
        peers: Tiles of a cluster.
    """
    most = min(parts // slices, MAX_SPLITS)
    fill = arch.processors_for(slices * peers) // (slices * tiles)
    return sorted({max(1, min(count, most)) for count in (fill, ceil_div(fill, 2))}, reverse=True)


def sum_bytes(rows: int, columns: int) -> int:
    """Return the shared memory of a tile's sums, which replace its operands at the end."""
    return rows * (columns + 8) * 4


def exchange_cycles(tile_bytes: int, slices: int, splits: int) -> float:
    """Estimate the cycles in which blocks add the sums of a tile, in clusters and then over clusters.

    See templates/sm90/wgrad/sums.cuh.
    """
    return tile_bytes * (1 + splits / slices * (splits > 1)) / _REDUCE_BYTES_A_CYCLE


@dataclass(frozen=True)
class WgradShape:
    """A config by name.

    Attributes:
        m: Output channels of a tile.
        n: Input channels of a tile.
        rows: Rows of the filter of a tile.
        columns: Columns of the filter of a tile.
        joined: Whether these columns are one product.
        images: Images of a box.
        slices: Blocks of a cluster.
    """

    m: int
    n: int
    rows: int
    columns: int
    joined: bool
    images: int
    slices: int

    @classmethod
    def from_config(cls, config: Config) -> WgradShape:
        """Return the shape of a config."""
        return cls(
            m=int(config["tile_k"]),
            n=int(config["tile_c"]),
            rows=int(config["filter_rows"]),
            columns=int(config["filter_columns"]),
            joined=bool(config["joined"]),
            images=int(config["images"]),
            slices=int(config["slices"]),
        )

    @property
    def groups(self) -> int:
        """Warpgroups that multiply."""
        return self.m // _CHUNK * self.rows

    @property
    def sums(self) -> int:
        """Registers of a thread for sums."""
        return self.columns * self.n // 2

    @property
    def pixel_bytes(self) -> int:
        """Shared memory of a pixel of a box."""
        return self.images * _CHUNK * 2

    @property
    def sum_bytes(self) -> int:
        """Shared memory of a tile's sums, which replace the boxes at the end."""
        return sum_bytes(self.rows * self.columns * self.m, self.n)

    def tiles(self, problem: Conv2dWgrad) -> int:
        """Return the tiles of a problem."""
        taps = ceil_div(problem.r, self.rows) * ceil_div(problem.s, self.columns)
        return ceil_div(problem.k, self.m) * ceil_div(problem.c, self.n) * taps


@dataclass(frozen=True)
class _Boxes:
    """How a problem's pixels are loaded.

    Attributes:
        columns: Output columns of a box.
        dy_bytes: Shared memory of a box of dy.
        x_bytes: Shared memory of a box of x.
        rows: Rows of boxes of the problem.
        span: Rows of dy that a row of x meets.
        apart: Rows of x from one that a filter row meets to the next.
    """

    columns: int
    dy_bytes: int
    x_bytes: int
    rows: int
    span: int
    apart: int

    def slots(self, room: int) -> tuple[int, int] | None:
        """Return the buffers of dy and of x that fit some bytes; None if too few do."""
        dy, x = self.span + 1, self.apart + 1
        left = room - self.bytes(dy, x)
        if left < 0:
            return None
        both = self.dy_bytes + self.x_bytes + 4 * _BARRIER_BYTES
        more = min(left // both, _MAX_SLOTS - max(dy, x))
        return dy + more, x + more

    def bytes(self, dy: int, x: int) -> int:
        """Return the shared memory of rings."""
        return dy * (self.dy_bytes + 2 * _BARRIER_BYTES) + x * (self.x_bytes + 2 * _BARRIER_BYTES)


def _boxes(problem: Conv2dWgrad, x: WgradShape) -> Iterator[_Boxes]:
    """Yield the ways to load a problem, the widest boxes first."""
    for across in range(1, problem.q + 1):
        columns = ceil_div(problem.q, across)
        if ceil_div(problem.q, columns) != across:
            continue
        whole = across == 1 and x.columns > 1 and not x.joined
        reach = (x.columns - 1) * problem.dilation[1] + 1
        step = 1 if x.columns == 1 else problem.stride[1]
        width = problem.w if whole else (columns - 1) * step + reach
        widest = (columns - 1) * problem.stride[1] + 1 if x.columns == 1 else width
        if max(widest, columns) > _MAX_COLUMNS:
            continue
        yield _Boxes(
            columns=columns,
            dy_bytes=x.m // _CHUNK * columns * x.pixel_bytes,
            x_bytes=x.n // _CHUNK * width * x.pixel_bytes,
            rows=ceil_div(problem.n, x.images) * across * problem.p,
            span=(x.rows - 1) * problem.dilation[0] // problem.stride[0] + 1,
            apart=1 if x.rows == 1 else problem.stride[0],
        )


def _fitting(problem: Conv2dWgrad, x: WgradShape, arch: Architecture) -> Iterator[tuple[_Boxes, tuple[int, int]]]:
    """Yield the two widest boxes of which rings fit, and the rings' buffers."""
    shared = arch.block_shared - _ALIGNMENT - _BARRIER_BYTES
    return islice(((boxes, slots) for boxes in _boxes(problem, x) if (slots := boxes.slots(shared))), 2)


class Sm90Conv2dWgrad(HopperFamily[Conv2dWgrad]):
    """Weight gradient of a convolution for Hopper: TMA and wgmma; fp16 and bf16 with float32 sums, NHWC.

    The GEMM of each filter tap is M = k, N = c, K = n*p*q, 16 images of a pixel at a time.
    """

    name = "sm90_conv2d_wgrad"
    operator = Conv2dWgrad
    template = "sm90/wgrad/conv2d.cu.j2"
    parameters = (
        Parameter("filter_rows", (1, 2, 3), "rows of the filter of a tile, a warpgroup each"),
        Parameter("filter_columns", (1, 2, 3), "columns of the filter of a tile"),
        Parameter("joined", (0, 1), "1: these columns are one product; 0: a product each, which skips the padding"),
        Parameter("tile_k", (64, 128, 192), "output channels of a tile"),
        Parameter("tile_c", (64, 128, 192, 256), "input channels of a tile"),
        Parameter("images", (16, 32, 64), "images of a box, which has some pixels of each"),
        Parameter("slices", (1, 2, 4, 8), "blocks of a cluster that split a tile's pixels"),
    )
    launch_parameters = (
        Parameter("columns", tuple(range(1, _MAX_COLUMNS + 1)), "output pixels of a box across an image"),
        Parameter("dy_slots", tuple(range(2, _MAX_SLOTS + 1)), "buffers of the output's gradient"),
        Parameter("x_slots", tuple(range(2, _MAX_SLOTS + 1)), "buffers of the input"),
        Parameter("splits", tuple(range(1, MAX_SPLITS + 1)), "clusters that split a tile's pixels"),
    )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        x = WgradShape.from_config(config)
        yield require(
            x.groups <= _MAX_GROUPS,
            f"tile_k / 64 * filter_rows must be at most {_MAX_GROUPS} warpgroups; it is {x.groups}",
        )
        yield require(x.columns == 1 or x.n == _CHUNK, f"with several filter columns tile_c must be {_CHUNK}")
        yield require(x.columns > 1 or not x.joined, "joined must be 0 with one filter column")
        most = _MAX_SUMS[x.groups]
        yield require(x.sums <= most, f"a thread must have at most {most} sums, or spills; it has {x.sums}")

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Conv2dWgrad | None
    ) -> Sequence[Value]:
        several = int(chosen.get("filter_columns", 1)) > 1
        match parameter.name:
            case "tile_c" if several:
                return (_CHUNK,)
            case "joined" if not several:
                return (0,)
            case "filter_rows" if problem:
                return tuple({1: 1, min(problem.r, 3): 1})
            case "filter_columns" if problem:
                return tuple({1: 1, min(problem.s, 3): 1})
        return parameter.values

    def unsupported(self, problem: Conv2dWgrad) -> Rules:
        yield require(problem.groups == 1, "groups must be 1")
        yield require(problem.c % 8 == 0 and problem.k % 8 == 0, "c and k must be multiples of 8")
        yield require(max(problem.stride) <= 8, "stride must be at most 8")
        yield require(
            (problem.s - 1) * problem.dilation[1] < _MAX_COLUMNS, "a filter must be less than 256 pixels wide"
        )
        yield require(problem.n * problem.p * problem.q < 2**31, "dy must have fewer than 2^31 pixels")

    def unfit(self, problem: Conv2dWgrad, config: Config, arch: Architecture) -> Rules:
        x = WgradShape.from_config(config)
        yield require(
            x.rows in (1, min(problem.r, 3)), f"filter_rows {x.rows} leaves warpgroups without rows of the filter"
        )
        yield require(
            x.columns in (1, min(problem.s, 3)), f"filter_columns {x.columns} leaves products without a column"
        )
        yield require(x.m - _CHUNK < problem.k, f"tile_k {x.m} would leave warpgroups without channels")
        yield require(x.n - _CHUNK < problem.c, f"tile_c {x.n} would leave products without channels")
        yield require(x.images == 16 or x.images < 2 * problem.n, f"images {x.images} would leave half a box empty")

    def launches(self, problem: Conv2dWgrad, config: Config, arch: Architecture) -> list[Launch]:
        x = WgradShape.from_config(config)
        return [
            {"columns": boxes.columns, "dy_slots": dy, "x_slots": slots, "splits": splits}
            for boxes, (dy, slots) in _fitting(problem, x, arch)
            if boxes.rows >= x.slices
            for splits in split_counts(boxes.rows, x.tiles(problem), x.slices, arch)
        ]

    def cost(self, problem: Conv2dWgrad, config: Config, arch: Architecture) -> float:
        """Estimate cycles: the rows of a block, bound by products or by loads, then the sums of all blocks."""
        x, best = WgradShape.from_config(config), float("inf")
        tiles = x.tiles(problem)
        # The least cycles of a product: its operands come from shared memory, 128 bytes a cycle.
        width = x.columns * x.n if x.joined else x.n
        product = max(64 * width * 16 / arch.wgmma_rate, (64 + width) * 16 * 2 / 128)
        products = x.groups * (1 if x.joined else x.columns) * (x.images // 16)
        for boxes, _ in _fitting(problem, x, arch):
            for splits in split_counts(boxes.rows, tiles, x.slices, arch):
                blocks = tiles * splits * x.slices
                rounds = ceil_div(blocks, arch.processors_for(x.slices))
                rows = ceil_div(boxes.rows, splits * x.slices)
                loads = (boxes.dy_bytes + boxes.x_bytes) / LOADED_BYTES_A_CYCLE
                ends = exchange_cycles(x.sum_bytes, x.slices, splits)
                row = max(boxes.columns * products * product, loads, 200)
                best = min(best, rounds * (rows * row + _END_CYCLES + ends))
        return best

    def label(self, config: Config) -> str:
        x = WgradShape.from_config(config)
        joined, split = " joined" if x.joined else "", f" c{x.slices}" if x.slices > 1 else ""
        return f"{x.m}x{x.n} taps {x.rows}x{x.columns}{joined} images {x.images}{split}"


FAMILIES = (Sm90Conv2dWgrad(),)
