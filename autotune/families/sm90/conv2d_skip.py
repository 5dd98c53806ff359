"""Convolution with the projection of a skip connection for Hopper: TMA and wgmma; fp16, bf16 and int8, NHWC.

The GEMM is M = n*p*q, N = k, K = r*s*c + skip_c. See templates/sm90/conv2d_skip/conv2d_skip.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core import MAX_PROCESSORS, Architecture, ceil_div
from autotune.families.base import Config, Launch, Parameter, Value
from autotune.families.rules import Rules, first_unmet, require, require_no_overflow
from autotune.families.sm90.hopper_family import hopper_family
from autotune.families.sm90.im2col import im2col_rules
from autotune.ir import DTYPES, S8, Conv2dSkip, Epilogue

_ROW_BYTES = 128  # of a step's channels
_MAX_SUMS = {1: 64, 2: 128, 3: 96}
"""Registers of a thread for sums, by warpgroups: with one, two blocks share an SM's registers."""
_ALIGNMENT, _BARRIER_BYTES, _MAX_SLOTS = 1024, 8, 10

# For the cost, in cycles and bytes of an SM: estimates for an H100, not fitted.
_MEMORY_BYTES_A_CYCLE, _L2_BYTES_A_CYCLE = 13, 40
_STEPS_ELEMENTS_A_CYCLE, _STEP_WAIT, _START = 8, 60, 2500


@dataclass(frozen=True)
class SkipShape:
    """A config's numbers; FAMILY.parameters say what they mean."""

    n: int
    groups: int

    @classmethod
    def from_config(cls, config: Config) -> SkipShape:
        """Return the numbers of a config."""
        return cls(n=int(config["tile_n"]), groups=int(config["groups"]))

    @property
    def rows(self) -> int:
        """Pixels of a tile."""
        return 64 * self.groups

    @property
    def slot_bytes(self) -> int:
        """Shared memory of a step's pixels and filters."""
        return (self.rows + self.n) * _ROW_BYTES + 2 * _BARRIER_BYTES

    def slots(self, room: int) -> int:
        """Return the buffers that fit some shared memory."""
        return min((room - _ALIGNMENT) // self.slot_bytes, _MAX_SLOTS)

    def tiles(self, problem: Conv2dSkip) -> int:
        """Return the tiles of a problem."""
        return ceil_div(problem.n * problem.p * problem.q, self.rows) * ceil_div(problem.k, self.n)


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    shape = SkipShape.from_config(config)

    def rules() -> Rules:
        # In int8 a thread has the sums of the first convolution in float, too.
        sums, most = shape.n // 2 * (2 if dtype == S8.dtype else 1), _MAX_SUMS[shape.groups]
        yield require(sums <= most, f"the sums of a thread must fit {most} registers; they take {sums}")
        yield require(not epilogue.anchors, "the epilogue can have no anchor")

    return first_unmet(rules())


def _why_unsupported(problem: Conv2dSkip) -> str | None:
    def rules() -> Rules:
        channels, granule = (problem.c, problem.skip_c, problem.k), 16 // DTYPES[problem.dtype].itemsize
        yield require(all(size % granule == 0 for size in channels), f"c, skip_c and k must be multiples of {granule}")
        yield require_no_overflow(problem.dtype, max(problem.r * problem.s * problem.c, problem.skip_c))
        yield from im2col_rules(problem, *problem.stride, *problem.skip_stride)

    return first_unmet(rules())


def _why_unfit(problem: Conv2dSkip, config: Config, arch: Architecture) -> str | None:
    shape = SkipShape.from_config(config)
    return require(shape.n < problem.k + 64, "a tile with fewer columns wastes less of the products")


def _candidate_values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Conv2dSkip | None
) -> Sequence[Value]:
    return parameter.values


def _launches(problem: Conv2dSkip, config: Config, arch: Architecture) -> list[Launch]:
    """Return as many buffers as fit, for one block of an SM, and for two that share it."""
    shape, found = SkipShape.from_config(config), list[Launch]()
    for blocks in (2, 1) if shape.groups == 1 else (1,):
        slots = shape.slots(min(arch.block_shared, arch.sm_shared // blocks - arch.reserved_shared))
        if slots >= 2:
            found.append({"slots": slots, "grid": blocks * arch.processors})
    return found


def _cost(problem: Conv2dSkip, config: Config, arch: Architecture) -> float:
    """Estimate cycles: rounds of tiles, each bound by products, by loads or by memory, and its epilogue."""
    shape = SkipShape.from_config(config)
    tiles = shape.tiles(problem)
    channels = _ROW_BYTES // DTYPES[problem.dtype].itemsize
    steps = problem.r * problem.s * ceil_div(problem.c, channels) + ceil_div(problem.skip_c, channels)
    product = steps * shape.rows * shape.n * _ROW_BYTES / 2 / (arch.wgmma_rate or 2048)
    loads = steps * shape.slot_bytes / _L2_BYTES_A_CYCLE
    memory = problem.bytes / tiles / _MEMORY_BYTES_A_CYCLE
    epilogue = shape.rows * shape.n / _STEPS_ELEMENTS_A_CYCLE
    blocks = arch.processors * (2 if shape.groups == 1 else 1)
    rounds = ceil_div(tiles, blocks) * (2 if shape.groups == 1 else 1)
    return rounds * (max(product + steps * _STEP_WAIT / shape.groups, loads, memory) + epilogue / 2) + _START


def _label(config: Config) -> str:
    shape = SkipShape.from_config(config)
    return f"{shape.rows}x{shape.n}"


FAMILY = hopper_family(
    "sm90_conv2d_skip",
    Conv2dSkip,
    template="sm90/conv2d_skip/conv2d_skip.cu.j2",
    parameters=(
        Parameter("tile_n", (32, 64, 96, 128, 192, 256), "output channels of a tile"),
        Parameter("groups", (1, 2, 3), "warpgroups that multiply, of 64 pixels each"),
    ),
    launch_parameters=(
        Parameter("slots", tuple(range(2, _MAX_SLOTS + 1)), "buffers of pixels and filters"),
        Parameter("grid", tuple(range(2 * MAX_PROCESSORS + 1)), "most blocks; 0: one for each tile"),
    ),
    why_illegal=_why_illegal,
    candidate_values=_candidate_values,
    why_unsupported=_why_unsupported,
    why_unfit=_why_unfit,
    launches=_launches,
    cost=_cost,
    label=_label,
    weight_layouts={"weight": "wgmma", "projection": "wgmma"},
    dtypes=("f16", "bf16", "s8"),
)
