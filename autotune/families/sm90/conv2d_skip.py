"""Convolution with the projection of a skip connection for Hopper: templates/sm90/conv2d_skip/conv2d_skip.cuh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.core import MAX_PROCESSORS, Architecture, ceil_div, round_up
from autotune.families.base import Config, Launch, Parameter, Rules, Value, require, require_no_overflow
from autotune.families.sm90.common import HopperFamily, im2col_rules
from autotune.ir import BYTE_FORMATS, DTYPES, Epilogue
from autotune.ir.operators import Conv2dSkip

_ROW_BYTES = (64, 128)  # of a step's channels
_MAX_SUMS = {1: 64, 2: 128, 3: 96, 4: 64}
"""Registers of a thread for sums, by warpgroups: with one, two blocks share an SM's registers."""
_ALIGNMENT, _BARRIER_BYTES = 1024, 8
_MAX_SLOTS = 12  # more loads ahead do not hide more
_MAX_TOGETHER = 64  # columns of a tile: more read the pixels once, too, but leave fewer tiles

# For the cost, in cycles and bytes of an SM: estimates for an H100, not fitted.
_MEMORY_BYTES_A_CYCLE, _L2_BYTES_A_CYCLE = 13, 40
_STEPS_ELEMENTS_A_CYCLE, _STEP_WAIT, _START = 8, 60, 2500


@dataclass(frozen=True)
class SkipShape:
    """A config's numbers; Sm90Conv2dSkip.parameters say what they mean."""

    n: int
    groups: int
    row_bytes: int
    resident: bool

    @classmethod
    def from_config(cls, config: Config) -> SkipShape:
        """Return the numbers of a config. Kernels of older databases have rows of 128 bytes and streamed filters."""
        return cls(
            n=int(config["tile_n"]),
            groups=int(config["groups"]),
            row_bytes=int(config.get("row_bytes", 128)),
            resident=config.get("weights") == "resident",
        )

    @property
    def rows(self) -> int:
        """Pixels of a tile."""
        return 64 * self.groups

    @property
    def pixel_bytes(self) -> int:
        """Shared memory of a step's pixels."""
        return self.rows * self.row_bytes + 2 * _BARRIER_BYTES

    @property
    def filter_bytes(self) -> int:
        """Shared memory of a step's filters."""
        return self.n * self.row_bytes + 2 * _BARRIER_BYTES

    def staging_bytes(self, dtype: str) -> int:
        """Return the shared memory of the output that leaves: two pieces of each warp."""
        row = self.n * DTYPES[dtype].itemsize
        piece = next(size for size in (128, 64, 32) if row % size == 0)
        return 4 * self.groups * 2 * 16 * piece

    def steps(self, problem: Conv2dSkip) -> int:
        """Return the steps of a tile."""
        channels = self.row_bytes // DTYPES[problem.dtype].itemsize
        return problem.r * problem.s * ceil_div(problem.c, channels) + ceil_div(problem.skip_c, channels)

    def columns(self, problem: Conv2dSkip) -> int:
        """Return the columns of tiles."""
        return ceil_div(problem.k, self.n)


def _row_bytes(problem: Conv2dSkip) -> list[int]:
    """Return the rows of shared memory worth timing: the longest, and shorter ones with less padding."""
    size = DTYPES[problem.dtype].itemsize

    def padded(row: int) -> int:
        window = problem.r * problem.s
        return window * round_up(problem.c * size, row) + round_up(problem.skip_c * size, row)

    longest = _ROW_BYTES[-1]
    return [row for row in _ROW_BYTES if row == longest or padded(row) < padded(longest)]


def _loadings(problem: Conv2dSkip, shape: SkipShape, room: int) -> list[Launch]:
    """Return the slots of both rings that fit some shared memory, for each useful number of columns of a tile."""
    steps, columns, found = shape.steps(problem), shape.columns(problem), list[Launch]()
    for together in sorted({1, 2, 4, columns}):
        least = steps if together > 1 else 2
        if together > min(columns, _MAX_TOGETHER) or least > _MAX_SLOTS:
            continue
        left = room - _ALIGNMENT - shape.staging_bytes(problem.dtype)
        if shape.resident:
            filters = steps * together
        else:
            filters = min(left // (shape.pixel_bytes + shape.filter_bytes), _MAX_SLOTS)
        pixels = min((left - filters * shape.filter_bytes) // shape.pixel_bytes, _MAX_SLOTS)
        if not shape.resident and pixels < least:
            pixels = least
            filters = min((left - pixels * shape.pixel_bytes) // shape.filter_bytes, _MAX_SLOTS)
        if filters >= 2 and pixels >= least:
            found.append(
                {"pixel_slots": pixels, "filter_slots": 0 if shape.resident else filters, "together": together}
            )
    return found


class Sm90Conv2dSkip(HopperFamily[Conv2dSkip]):
    """Convolution with the projection of a skip connection for Hopper: TMA and wgmma; fp16, bf16 and int8, NHWC.

    e4m3.py has the kernels for e4m3. The GEMM is M = n*p*q, N = k, K = r*s*c + skip_c.
    """

    name = "sm90_conv2d_skip"
    operator = Conv2dSkip
    template = "sm90/conv2d_skip/conv2d_skip.cu.j2"
    parameters: tuple[Parameter, ...] = (
        Parameter("tile_n", (32, 64, 96, 128, 192, 256), "output channels of a tile"),
        Parameter("groups", tuple(_MAX_SUMS), "warpgroups that multiply, of 64 pixels each"),
        Parameter("row_bytes", _ROW_BYTES, "bytes of input channels of a step, a swizzled row of shared memory"),
        Parameter("weights", ("streamed", "resident"), "loaded for each tile, or once for all tiles of a block"),
    )
    launch_parameters = (
        Parameter("pixel_slots", tuple(range(2, _MAX_SLOTS + 1)), "buffers of a step's pixels"),
        Parameter("filter_slots", (0, *range(2, _MAX_SLOTS + 1)), "of a step's filters; 0 where they are resident"),
        Parameter("together", tuple(range(1, _MAX_TOGETHER + 1)), "columns of channels that a tile's pixels serve"),
        Parameter("grid", tuple(range(2 * MAX_PROCESSORS + 1)), "most blocks; 0: one for each tile"),
    )
    dtypes: tuple[str, ...] = ("f16", "bf16", "s8")

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        shape = SkipShape.from_config(config)
        # In 8 bits a thread has the sums of both convolutions.
        sums, most = shape.n // 2 * (2 if dtype in BYTE_FORMATS else 1), _MAX_SUMS[shape.groups]
        yield require(sums <= most, f"the sums of a thread must fit {most} registers; they take {sums}")
        yield require(not epilogue.anchors, "the epilogue can have no anchor")

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Conv2dSkip | None
    ) -> Sequence[Value]:
        if problem and parameter.name == "row_bytes":
            return _row_bytes(problem)
        return parameter.values

    def unsupported(self, problem: Conv2dSkip) -> Rules:
        channels, granule = (problem.c, problem.skip_c, problem.k), 16 // DTYPES[problem.dtype].itemsize
        yield require(all(size % granule == 0 for size in channels), f"c, skip_c and k must be multiples of {granule}")
        yield require_no_overflow(problem.dtype, max(problem.r * problem.s * problem.c, problem.skip_c))
        yield from im2col_rules(problem, *problem.stride, *problem.skip_stride)

    def unfit(self, problem: Conv2dSkip, config: Config, arch: Architecture) -> Rules:
        shape = SkipShape.from_config(config)
        yield require(shape.n < problem.k + 64, "a tile with fewer columns wastes less of the products")
        yield require(_loadings(problem, shape, arch.block_shared), "the filters of a tile must fit a block's memory")

    def launches(self, problem: Conv2dSkip, config: Config, arch: Architecture) -> list[Launch]:
        """Return the launch values worth timing, for one block of an SM, and for two that share it."""
        shape, found = SkipShape.from_config(config), list[Launch]()
        columns = shape.columns(problem)
        for blocks in (2, 1) if shape.groups == 1 else (1,):
            room = min(arch.block_shared, arch.sm_shared // blocks - arch.reserved_shared)
            for loading in _loadings(problem, shape, room):
                parts = ceil_div(columns, loading["together"])
                grid = blocks * arch.processors // parts * parts if shape.resident else blocks * arch.processors
                if grid:
                    found.append({**loading, "grid": grid})
        return found

    def cost(self, problem: Conv2dSkip, config: Config, arch: Architecture) -> float:
        """Estimate cycles: rounds of tiles, each bound by products, by loads or by memory, and its epilogue."""
        shape = SkipShape.from_config(config)
        steps, columns = shape.steps(problem), shape.columns(problem)
        row_tiles = ceil_div(problem.n * problem.p * problem.q, shape.rows)
        product = steps * shape.rows * shape.n * shape.row_bytes / 2 / (arch.wgmma_rate or 2048)
        memory = problem.bytes / (row_tiles * columns) / _MEMORY_BYTES_A_CYCLE
        epilogue = shape.rows * shape.n / _STEPS_ELEMENTS_A_CYCLE
        waits = steps * _STEP_WAIT / shape.groups
        blocks = 2 if shape.groups == 1 else 1
        best = float("inf")
        for loading in _loadings(problem, shape, arch.block_shared):
            together = loading["together"]
            rounds = ceil_div(row_tiles * ceil_div(columns, together), arch.processors * blocks) * blocks * together
            filters = 0 if shape.resident else shape.filter_bytes
            loads = steps * (shape.pixel_bytes / together + filters) / _L2_BYTES_A_CYCLE
            best = min(best, rounds * (max(product + waits, loads, memory) + epilogue / 2))
        return best + _START

    def label(self, config: Config) -> str:
        shape = SkipShape.from_config(config)
        return f"{shape.rows}x{shape.n}x{shape.row_bytes}B{' resident' if shape.resident else ''}"

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "wgmma", "projection": "wgmma"}


FAMILIES = (Sm90Conv2dSkip(),)
