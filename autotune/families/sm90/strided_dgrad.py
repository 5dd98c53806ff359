"""Input gradient of a strided convolution for Hopper: templates/sm90/strided_dgrad/conv2d.cuh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Launch, Parameter, Rules, require
from autotune.families.sm90.common import LOADED_BYTES_A_CYCLE, HopperFamily, im2col_rules
from autotune.families.sm90.staged_tile import CHUNK, StagedTile
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2dDgrad

_MAX_SLOTS, _MAX_STRIDE = 8, 2
_ATOM = 8  # rows of 128 bytes that TMA's swizzle mixes

# For the cost, in cycles: estimates for an H200, not fitted.
_BLOCK_CYCLES, _STORED_BYTES_A_CYCLE = 2000, 20  # of a block's begin and end; that an SM stores


@dataclass(frozen=True)
class StridedDgradShape(StagedTile):
    """A config by name: a tile of pixels and input channels.

    Attributes:
        blocks: Blocks that a multiprocessor holds.
        cluster_m: Tiles of a cluster, which share the loads of weights.
    """

    blocks: int
    cluster_m: int

    @classmethod
    def from_config(cls, config: Config) -> StridedDgradShape:
        """Return the shape of a config."""
        names = ("tile_m", "tile_n", "groups", "blocks", "cluster_m")
        return cls(*(int(config[name]) for name in names))


def _phases(problem: Conv2dDgrad) -> Iterator[tuple[int, int]]:
    """Yield the pixels and the taps of each phase."""
    axes = [
        [
            (ceil_div(size - i, stride), sum((i + pad - t * dilation) % stride == 0 for t in range(taps)))
            for i in range(stride)
        ]
        for size, taps, stride, pad, dilation in zip(
            (problem.h, problem.w), (problem.r, problem.s), problem.stride, problem.pad, problem.dilation, strict=True
        )
    ]
    for rows, down in axes[0]:
        for columns, across in axes[1]:
            yield problem.n * rows * columns, down * across


class Sm90StridedDgrad(HopperFamily[Conv2dDgrad]):
    """Input gradient of a strided convolution for Hopper: TMA and wgmma; fp16 and bf16 with float32 sums, NHWC.

    Each phase of the stride is a GEMM: M = its pixels, N = c, K = k and the taps of the filter that its pixels meet.
    """

    name = "sm90_strided_dgrad"
    operator = Conv2dDgrad
    template = "sm90/strided_dgrad/conv2d.cu.j2"
    parameters = (
        Parameter("tile_m", (64, 128, 192, 256), "pixels of a tile"),
        Parameter("tile_n", (32, 64, 96, 128, 192, 256), "input channels of a tile"),
        Parameter("groups", (1, 2, 3), "warpgroups that multiply"),
        Parameter("blocks", (1, 2, 3), "blocks that a multiprocessor holds"),
        Parameter("cluster_m", (1, 2, 4), "tiles of a cluster that share the loads of weights"),
    )
    launch_parameters = (Parameter("slots", tuple(range(2, _MAX_SLOTS + 1)), "stages of dy and weights"),)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        x = StridedDgradShape.from_config(config)
        yield require(x.n % (_ATOM * x.cluster_m) == 0, f"each tile of a cluster must load {_ATOM} channels of weights")
        yield from x.rules(arch, "tile_m", x.blocks)

    def unsupported(self, problem: Conv2dDgrad) -> Rules:
        yield require(max(problem.stride) > 1, "with stride 1 the gradient is a convolution: see sm90_conv2d")
        yield require(max(problem.stride) <= _MAX_STRIDE, f"stride must be at most {_MAX_STRIDE}")
        yield require(problem.groups == 1, "groups must be 1")
        yield require(problem.c % 8 == 0 and problem.k % 8 == 0, "c and k must be multiples of 8")
        yield from im2col_rules(problem, *problem.stride)
        yield require(problem.n * problem.h * problem.w < 2**31, "dx must have fewer than 2^31 pixels")

    def unfit(self, problem: Conv2dDgrad, config: Config, arch: Architecture) -> Rules:
        x = StridedDgradShape.from_config(config)
        most = max(pixels for pixels, _ in _phases(problem))
        yield require(x.m == 64 or x.m < 2 * most, f"tile_m {x.m} would leave half of a tile empty")
        yield require(x.n == 32 or x.n < 2 * problem.c, f"tile_n {x.n} would leave half of a tile empty")
        tiles = ceil_div(most, x.m)
        yield require(x.cluster_m <= tiles, f"cluster_m {x.cluster_m} would leave blocks of each phase without pixels")

    def launches(self, problem: Conv2dDgrad, config: Config, arch: Architecture) -> list[Launch]:
        """Return as many stages as fit, but no more than a tile has fills."""
        fills = max(taps for _, taps in _phases(problem)) * ceil_div(problem.k, CHUNK)
        x = StridedDgradShape.from_config(config)
        return [{"slots": max(2, min(x.slots(arch, _MAX_SLOTS, x.blocks), fills))}]

    def cost(self, problem: Conv2dDgrad, config: Config, arch: Architecture) -> float:
        """Estimate cycles: the tiles of all phases, bound by products, by loads or by the store of the result."""
        x = StridedDgradShape.from_config(config)
        columns, chunks = ceil_div(problem.c, x.n), ceil_div(problem.k, CHUNK)
        product = x.m * x.n * CHUNK / arch.wgmma_rate
        loads = (x.m + x.n / x.cluster_m) * CHUNK * 2 / LOADED_BYTES_A_CYCLE
        cycles = longest = 0.0
        for pixels, taps in _phases(problem):
            tiles = ceil_div(pixels, x.m) * columns
            busy = taps * chunks * max(product, loads) + x.m * x.n * 2 / _STORED_BYTES_A_CYCLE
            cycles += tiles * (busy + _BLOCK_CYCLES / x.blocks)
            longest = max(longest, busy + _BLOCK_CYCLES)
        return max(cycles / arch.processors_for(x.cluster_m), longest)

    def label(self, config: Config) -> str:
        x = StridedDgradShape.from_config(config)
        parts = [
            f"{x.m}x{x.n} {x.groups}wg",
            f"c{x.cluster_m}x1" * (x.cluster_m > 1),
            f"blocks {x.blocks}" * (x.blocks > 1),
        ]
        return " ".join(filter(None, parts))

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight": "wgmma_dgrad"}


FAMILIES = (Sm90StridedDgrad(),)
