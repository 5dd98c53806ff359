"""Weight gradient of a convolution as one matrix product for Hopper: templates/sm90/wgrad/im2col.cuh."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Launch, Parameter, Rules, require
from autotune.families.sm90.common import LOADED_BYTES_A_CYCLE, MAX_CLUSTER, HopperFamily, im2col_rules
from autotune.families.sm90.conv2d_wgrad import MAX_SPLITS, exchange_cycles, split_counts, sum_bytes
from autotune.families.sm90.staged_tile import CHUNK, StagedTile
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2dWgrad

_MAX_SLOTS = 12

# For the cost, in cycles: estimates for an H200, not fitted.
_END_CYCLES = 3000  # of a block


@dataclass(frozen=True)
class Im2colWgradShape(StagedTile):
    """A config by name: a tile of output channels, and of chunks of 64 input channels of a tap.

    Attributes:
        slices: Blocks of a cluster that split a tile's pixels.
        cluster_k: Tiles of a cluster that differ by their output channels.
        cluster_n: Tiles of a cluster that differ by their columns.
    """

    slices: int
    cluster_k: int
    cluster_n: int

    @classmethod
    def from_config(cls, config: Config) -> Im2colWgradShape:
        """Return the shape of a config."""
        names = ("tile_k", "tile_n", "groups", "slices", "cluster_k", "cluster_n")
        return cls(*(int(config[name]) for name in names))

    @property
    def peers(self) -> int:
        """Tiles of a cluster, which share loads."""
        return self.cluster_k * self.cluster_n

    @property
    def loaded_rows(self) -> int:
        """Rows of both operands that a block loads itself."""
        return self.m // self.cluster_n + self.n // self.cluster_k

    def tiles(self, problem: Conv2dWgrad) -> int:
        """Return the tiles of a problem."""
        return math.prod(self.tile_counts(problem))

    def tile_counts(self, problem: Conv2dWgrad) -> tuple[int, int]:
        """Return the tiles along a problem's output channels, and along its columns."""
        return ceil_div(problem.k, self.m), ceil_div(_columns(problem), self.n)


def _columns(problem: Conv2dWgrad) -> int:
    """Return the columns of the product; each tap has whole chunks."""
    return problem.r * problem.s * ceil_div(problem.c, CHUNK) * CHUNK


def _steps(problem: Conv2dWgrad) -> int:
    return ceil_div(problem.n * problem.p * problem.q, CHUNK)


def _splits(problem: Conv2dWgrad, x: Im2colWgradShape, arch: Architecture) -> list[int]:
    return split_counts(_steps(problem), x.tiles(problem), x.slices, arch, x.peers)


class Sm90Im2colWgrad(HopperFamily[Conv2dWgrad]):
    """Weight gradient of a convolution as one matrix product for Hopper; fp16 and bf16 with float32 sums, NHWC.

    The GEMM is M = k, N = r*s*c, K = n*p*q, by TMA's im2col mode and wgmma. Its operands both have M and N in the order
    of memory.
    """

    name = "sm90_im2col_wgrad"
    operator = Conv2dWgrad
    template = "sm90/wgrad/im2col.cu.j2"
    parameters = (
        Parameter("tile_k", (64, 128, 192, 256), "output channels of a tile"),
        Parameter("tile_n", (64, 128, 192, 256), "columns of a tile: chunks of 64 input channels of a tap"),
        Parameter("groups", (1, 2, 3), "warpgroups that multiply"),
        Parameter("slices", (1, 2, 4, 8), "blocks of a cluster that split a tile's pixels"),
        Parameter("cluster_k", (1, 2, 4), "tiles of a cluster that share the loads of x"),
        Parameter("cluster_n", (1, 2, 4), "tiles of a cluster that share the loads of dy"),
    )
    launch_parameters = (
        Parameter("slots", tuple(range(2, _MAX_SLOTS + 1)), "stages of 64 pixels"),
        Parameter("splits", tuple(range(1, MAX_SPLITS + 1)), "clusters that split a tile's pixels"),
    )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        x = Im2colWgradShape.from_config(config)
        yield require(x.slices * x.peers <= MAX_CLUSTER, f"a cluster must have at most {MAX_CLUSTER} blocks")
        yield require(min(x.cluster_k, x.cluster_n) == 1, "tiles of a cluster must share x or dy, not both")
        yield require(x.n % (CHUNK * x.cluster_k) == 0, "each tile of a cluster must load whole chunks of x")
        yield require(x.m % (CHUNK * x.cluster_n) == 0, "each tile of a cluster must load whole chunks of dy")
        yield from x.rules(arch, "tile_k")

    def unsupported(self, problem: Conv2dWgrad) -> Rules:
        yield require(problem.groups == 1, "groups must be 1")
        yield require(problem.c % 8 == 0 and problem.k % 8 == 0, "c and k must be multiples of 8")
        yield from im2col_rules(problem, *problem.stride)

    def unfit(self, problem: Conv2dWgrad, config: Config, arch: Architecture) -> Rules:
        x = Im2colWgradShape.from_config(config)
        yield require(x.m - CHUNK < problem.k, f"tile_k {x.m} would leave products without channels")
        yield require(x.n - CHUNK < _columns(problem), f"tile_n {x.n} would leave products without channels")
        yield require(x.slices <= _steps(problem), f"slices {x.slices} would leave blocks without pixels")
        tiles_k, tiles_n = x.tile_counts(problem)
        yield require(tiles_k % x.cluster_k == 0, f"cluster_k {x.cluster_k} would leave blocks without channels")
        yield require(tiles_n % x.cluster_n == 0, f"cluster_n {x.cluster_n} would leave blocks without columns")

    def launches(self, problem: Conv2dWgrad, config: Config, arch: Architecture) -> list[Launch]:
        x = Im2colWgradShape.from_config(config)
        return [{"slots": x.slots(arch, _MAX_SLOTS), "splits": splits} for splits in _splits(problem, x, arch)]

    def cost(self, problem: Conv2dWgrad, config: Config, arch: Architecture) -> float:
        """Estimate cycles: the steps of a block, bound by products or by loads, then the sums of all blocks."""
        x, best = Im2colWgradShape.from_config(config), float("inf")
        step = max(x.m * x.n * CHUNK / arch.wgmma_rate, x.loaded_rows * CHUNK * 2 / LOADED_BYTES_A_CYCLE)
        for splits in _splits(problem, x, arch):
            blocks = x.tiles(problem) * splits * x.slices
            rounds = ceil_div(blocks, arch.processors_for(x.slices * x.peers))
            ends = exchange_cycles(sum_bytes(x.m, x.n), x.slices, splits)
            best = min(best, rounds * (ceil_div(_steps(problem), splits * x.slices) * step + _END_CYCLES + ends))
        return best

    def label(self, config: Config) -> str:
        x = Im2colWgradShape.from_config(config)
        peers = f" c{x.cluster_k}x{x.cluster_n}" if x.peers > 1 else ""
        return f"{x.m}x{x.n} {x.groups}wg{peers}" + (f" split{x.slices}" if x.slices > 1 else "")


FAMILIES = (Sm90Im2colWgrad(),)
