"""Two 1x1 convolutions in one kernel for Hopper: templates/sm90/pointwise_pair/pointwise_pair.cuh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.core import MAX_PROCESSORS, Architecture, ceil_div, round_up
from autotune.families.base import Config, Launch, Parameter, Rules, Value, require, require_no_overflow
from autotune.families.sm90.common import HopperFamily
from autotune.ir import DTYPES, Epilogue
from autotune.ir.operators import PointwisePair

_COLUMNS, _ROW_BYTES = tuple(range(32, 257, 32)), (32, 64, 128)
_REGISTERS = {1: 128, 2: 232, 3: 160}
"""Registers of a thread that multiplies, by warpgroups: those of pointwise_pair.cuh."""
_OTHER_REGISTERS = 24  # addresses and the like: with fewer, kernels spill some hundred bytes
_PRODUCT_REGISTERS = 30
"""Registers that ptxas asks for beside the sums of a product. They must fit those that the launch gives each thread,
which are fewer than a multiplying thread has later."""
_ALIGNMENT, _BARRIER_BYTES = 1024, 8
_MAX_WEIGHT_SLOTS = 6  # more filters ahead do not hide more

# For the cost, in cycles and bytes of an SM: estimates for an H100, not fitted.
_MEMORY_BYTES_A_CYCLE, _L2_BYTES_A_CYCLE = 13, 35
_STEPS_ELEMENTS_A_CYCLE = 8  # of the sums to which a block applies steps
_CHUNK_WAIT, _TILE_WAIT, _START = 300, 800, 2500


@dataclass(frozen=True)
class PairShape:
    """A config's numbers for a dtype; Sm90PointwisePair.parameters say what they mean."""

    element_bytes: int
    columns: int
    chunk: int
    row_bytes: int
    groups: int
    resident: bool
    ahead: int

    @classmethod
    def from_config(cls, config: Config, dtype: str) -> PairShape:
        """Return the numbers of a config."""
        return cls(
            element_bytes=DTYPES[dtype].itemsize,
            columns=int(config["columns"]),
            chunk=int(config["chunk"]),
            row_bytes=int(config["row_bytes"]),
            groups=int(config["groups"]),
            resident=config["weights"] == "resident",
            ahead=int(config["ahead"]),
        )

    @property
    def rows(self) -> int:
        """Pixels of a tile."""
        return 64 * self.groups

    def registers(self, epilogue: Epilogue) -> int:
        """Return the registers of a thread: both sums, the second product's operand, and what the steps read."""
        early, late = (
            sum(argument.kind == "tensor" for step in part for argument in step.arguments) for part in epilogue.parts
        )
        steps = max(early * self.chunk, late * min(self.columns, 64)) * self.element_bytes // 4
        hidden, operand = (1 + self.ahead) * self.chunk // 2, self.chunk * self.element_bytes // 8
        return self.columns // 2 + hidden + operand + steps + _OTHER_REGISTERS

    @property
    def row(self) -> int:
        """Input channels of a row in shared memory."""
        return self.row_bytes // self.element_bytes

    def slot_bytes(self, channels: int) -> int:
        """Return the shared memory of a tile's pixels."""
        return self.rows * round_up(channels, self.row) * self.element_bytes + 2 * _BARRIER_BYTES

    def weight_bytes(self, channels: int) -> int:
        """Return the shared memory of a chunk's filters."""
        return self.chunk * (round_up(channels, self.row) + self.columns) * self.element_bytes + 2 * _BARRIER_BYTES

    def weight_slots(self, problem: PointwisePair, x_slots: int, room: int) -> int:
        """Return the buffers of filters that fit beside those of pixels; 0 if they are too few."""
        left = room - _ALIGNMENT - x_slots * self.slot_bytes(problem.c)
        fit, chunks = max(left, 0) // self.weight_bytes(problem.c), ceil_div(problem.hidden, self.chunk)
        if self.resident:
            return chunks if fit >= chunks else 0
        return min(fit, _MAX_WEIGHT_SLOTS) if fit >= 2 + self.ahead else 0


def _row_bytes(problem: PointwisePair) -> int:
    """Return the shortest rows in shared memory that hold the input channels, or the longest ones."""
    needed = problem.c * DTYPES[problem.dtype].itemsize
    return next((row for row in _ROW_BYTES if needed <= row), _ROW_BYTES[-1])


class Sm90PointwisePair(HopperFamily[PointwisePair]):
    """Two 1x1 convolutions for Hopper without the tensor between them: TMA and wgmma; fp16, bf16 and s8, NHWC.

    The GEMMs are M = n*h*w, N = hidden, K = c, and M, N = k, K = hidden.
    """

    name = "sm90_pointwise_pair"
    operator = PointwisePair
    template = "sm90/pointwise_pair/pointwise_pair.cu.j2"
    dtypes = ("f16", "bf16", "s8")
    parameters = (
        Parameter("columns", _COLUMNS, "output channels, rounded up"),
        Parameter("chunk", (32, 64, 128), "hidden channels at a time"),
        Parameter("row_bytes", _ROW_BYTES, "bytes of input channels in a swizzled row of shared memory"),
        Parameter("groups", (1, 2, 3), "warpgroups that multiply, of 64 pixels each"),
        Parameter("weights", ("streamed", "resident"), "loaded for each tile, or once for all tiles of a block"),
        Parameter("ahead", (1, 0), "1: the next chunk's first product runs during the steps between the convolutions"),
    )
    launch_parameters = (
        Parameter("x_slots", (1, 2, 3), "buffers of pixels"),
        Parameter("weight_slots", tuple(range(_MAX_WEIGHT_SLOTS + 1)), "buffers of filters; 0 where they are resident"),
        Parameter("grid", tuple(range(2 * MAX_PROCESSORS + 1)), "most blocks; 0: one for each tile"),
    )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        shape = PairShape.from_config(config, dtype)
        yield require(epilogue.anchors == PointwisePair.anchors, "the epilogue must have the step conv")
        taken, most = shape.registers(epilogue), _REGISTERS[shape.groups]
        yield require(taken <= most, f"sums and operands of a thread must fit {most} registers; they take {taken}")
        given, product = arch.sm_registers // (128 * (shape.groups + 1)), shape.columns // 2 + _PRODUCT_REGISTERS
        yield require(product <= given, f"a product must fit {given} registers of a thread; it takes {product}")
        least = _ALIGNMENT + shape.slot_bytes(1) + shape.weight_bytes(1)
        yield require(
            least <= arch.block_shared, f"a block must fit {arch.block_shared} bytes of shared memory; it takes {least}"
        )

    def unsupported(self, problem: PointwisePair) -> Rules:
        sizes = problem.c, problem.hidden, problem.k
        granule = 16 // DTYPES[problem.dtype].itemsize  # TMA's strides are multiples of 16 bytes
        yield require(all(size % granule == 0 for size in sizes), f"c, hidden and k must be multiples of {granule}")
        yield require_no_overflow(problem.dtype, max(problem.c, problem.hidden))
        yield require(problem.k <= _COLUMNS[-1], f"k must be at most {_COLUMNS[-1]}, the columns of a wgmma")
        yield require(problem.rows < 2**31, "there must be fewer than 2^31 pixels")

    def decided(self, problem: PointwisePair) -> Mapping[str, Value]:
        return {"columns": round_up(problem.k, 32), "row_bytes": _row_bytes(problem)}

    def unfit(self, problem: PointwisePair, config: Config, arch: Architecture) -> Rules:
        shape = PairShape.from_config(config, problem.dtype)
        yield from super().unfit(problem, config, arch)
        yield require(shape.chunk < 2 * problem.hidden, "a smaller chunk wastes less of the products")
        yield require(
            shape.weight_slots(problem, 1, arch.block_shared), f"a tile must fit {arch.block_shared} bytes of memory"
        )

    def launches(self, problem: PointwisePair, config: Config, arch: Architecture) -> list[Launch]:
        """Return the numbers of buffers worth timing, for one block of an SM, and for two that share it."""
        shape = PairShape.from_config(config, problem.dtype)
        tiles = ceil_div(problem.rows, shape.rows)
        found: list[Launch] = []
        for blocks in (1, 2) if shape.groups == 1 else (1,):
            room = min(arch.block_shared, arch.sm_shared // blocks - arch.reserved_shared)
            grid = blocks * arch.processors
            for x_slots in (2, 3, 1):
                weight_slots = shape.weight_slots(problem, x_slots, room)
                is_useful = x_slots == 1 or tiles > (x_slots - 1) * grid
                if weight_slots and is_useful:
                    slots = 0 if shape.resident else weight_slots
                    found.append({"x_slots": x_slots, "weight_slots": slots, "grid": grid})
        return found

    def cost(self, problem: PointwisePair, config: Config, arch: Architecture) -> float:
        """Estimate cycles: rounds of tiles, each bound by products, by steps, by the filters or by memory."""
        shape = PairShape.from_config(config, problem.dtype)
        rounds = ceil_div(ceil_div(problem.rows, shape.rows), arch.processors)
        depth, hidden = round_up(problem.c, shape.row), round_up(problem.hidden, shape.chunk)
        chunks = hidden // shape.chunk
        product = shape.rows * hidden * (depth + shape.columns) * shape.element_bytes / 2 / (arch.wgmma_rate or 2048)
        steps = shape.rows * (hidden + shape.columns) / _STEPS_ELEMENTS_A_CYCLE
        waits = (chunks * _CHUNK_WAIT / (1 + shape.ahead) + _TILE_WAIT) / min(shape.groups, 2)
        weights = chunks * shape.weight_bytes(problem.c) / _L2_BYTES_A_CYCLE
        rows = min(shape.rows, problem.rows)
        memory = rows / problem.rows * problem.bytes / _MEMORY_BYTES_A_CYCLE
        overlaps = shape.groups > 1 or shape.ahead
        work = max(product, steps) if overlaps else product + steps
        tile = max(work, memory, 0 if shape.resident else weights)
        return rounds * (tile + waits) + _START + (weights if shape.resident else 0)

    def label(self, config: Config) -> str:
        shape = PairShape.from_config(config, "f16")  # no label depends on the dtype
        extras = f"{' resident' if shape.resident else ''}{' ahead' if shape.ahead else ''}"
        return f"{shape.rows}x{shape.chunk}>{shape.columns}{extras}"

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight1": "wgmma", "weight2": "wgmma_pair"}


FAMILIES = (Sm90PointwisePair(),)
