"""Gradient of a convolution by its weight as one matrix product for Hopper; fp16 and bf16 with float32 sums, NHWC.

The GEMM is M = k, N = r*s*c, K = n*p*q, by TMA's im2col mode and wgmma. Its operands both have M and N in the order of
memory. See templates/sm90/wgrad/im2col.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Launch, Parameter
from autotune.families.rules import Rules, first_unmet, require
from autotune.families.sm90.hopper_family import hopper_family
from autotune.families.sm90.im2col import im2col_rules
from autotune.families.sm90.rates import LOADED_BYTES_A_CYCLE
from autotune.families.sm90.staged_tile import CHUNK, StagedTile
from autotune.families.sm90.wgrad_sums import MAX_SPLITS, exchange_cycles, split_counts, sum_bytes
from autotune.ir import Conv2dWgrad, Epilogue

_MAX_SLOTS = 12

# For the cost, in cycles: estimates for an H200, not fitted.
_END_CYCLES = 3000  # of a block


@dataclass(frozen=True)
class Im2colWgradShape(StagedTile):
    """A config by name: a tile of output channels, and of chunks of 64 input channels of a tap.

    Attributes:
        slices: Blocks of a cluster.
    """

    slices: int

    @classmethod
    def from_config(cls, config: Config) -> Im2colWgradShape:
        """Return the shape of a config."""
        names = ("tile_k", "tile_n", "groups", "slices")
        return cls(*(int(config[name]) for name in names))

    def tiles(self, problem: Conv2dWgrad) -> int:
        """Return the tiles of a problem."""
        return ceil_div(problem.k, self.m) * ceil_div(_columns(problem), self.n)


def _columns(problem: Conv2dWgrad) -> int:
    """Return the columns of the product; each tap has whole chunks."""
    return problem.r * problem.s * ceil_div(problem.c, CHUNK) * CHUNK


def _steps(problem: Conv2dWgrad) -> int:
    return ceil_div(problem.n * problem.p * problem.q, CHUNK)


def _splits(problem: Conv2dWgrad, x: Im2colWgradShape, arch: Architecture) -> list[int]:
    return split_counts(_steps(problem), x.tiles(problem), x.slices, arch)


def _launches(problem: Conv2dWgrad, config: Config, arch: Architecture) -> list[Launch]:
    x = Im2colWgradShape.from_config(config)
    return [{"slots": x.slots(arch, _MAX_SLOTS), "splits": splits} for splits in _splits(problem, x, arch)]


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return first_unmet(Im2colWgradShape.from_config(config).rules(arch, "tile_k"))


def _why_unsupported(problem: Conv2dWgrad) -> str | None:
    def rules() -> Rules:
        yield require(problem.groups == 1, "groups must be 1")
        yield require(problem.c % 8 == 0 and problem.k % 8 == 0, "c and k must be multiples of 8")
        yield from im2col_rules(problem, *problem.stride)

    return first_unmet(rules())


def _why_unfit(problem: Conv2dWgrad, config: Config, arch: Architecture) -> str | None:
    x = Im2colWgradShape.from_config(config)

    def rules() -> Rules:
        yield require(x.m - CHUNK < problem.k, f"tile_k {x.m} would leave products without channels")
        yield require(x.n - CHUNK < _columns(problem), f"tile_n {x.n} would leave products without channels")
        yield require(x.slices <= _steps(problem), f"slices {x.slices} would leave blocks without pixels")

    return first_unmet(rules())


def _cost(problem: Conv2dWgrad, config: Config, arch: Architecture) -> float:
    """Estimate cycles: the steps of a block, bound by products or by loads, then the sums of all blocks."""
    x, best = Im2colWgradShape.from_config(config), float("inf")
    step = max(x.m * x.n * CHUNK / arch.wgmma_rate, (x.m + x.n) * CHUNK * 2 / LOADED_BYTES_A_CYCLE)
    for splits in _splits(problem, x, arch):
        blocks = x.tiles(problem) * splits * x.slices
        rounds = ceil_div(blocks, arch.processors_for(x.slices))
        ends = exchange_cycles(sum_bytes(x.m, x.n), x.slices, splits)
        best = min(best, rounds * (ceil_div(_steps(problem), splits * x.slices) * step + _END_CYCLES + ends))
    return best


def _label(config: Config) -> str:
    x = Im2colWgradShape.from_config(config)
    return f"{x.m}x{x.n} {x.groups}wg" + (f" c{x.slices}" if x.slices > 1 else "")


FAMILY = hopper_family(
    "sm90_im2col_wgrad",
    Conv2dWgrad,
    template="sm90/wgrad/im2col.cu.j2",
    parameters=(
        Parameter("tile_k", (64, 128, 192, 256), "output channels of a tile"),
        Parameter("tile_n", (64, 128, 192, 256), "columns of a tile: chunks of 64 input channels of a tap"),
        Parameter("groups", (1, 2, 3), "warpgroups that multiply"),
        Parameter("slices", (1, 2, 4, 8), "blocks of a cluster that split a tile's pixels"),
    ),
    launch_parameters=(
        Parameter("slots", tuple(range(2, _MAX_SLOTS + 1)), "stages of 64 pixels"),
        Parameter("splits", tuple(range(1, MAX_SPLITS + 1)), "clusters that split a tile's pixels"),
    ),
    why_illegal=_why_illegal,
    why_unsupported=_why_unsupported,
    why_unfit=_why_unfit,
    launches=_launches,
    cost=_cost,
    label=_label,
    weight_layouts={},
)
