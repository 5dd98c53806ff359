"""A residual block with squeeze-and-excitation, for Hopper: templates/sm90/se_resnet9/block/se_block.cuh."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from autotune.core import Architecture, ceil_div
from autotune.families import se_gate
from autotune.families.base import Config, ConfigNumbers, Launch, Parameter, Value
from autotune.families.rules import Rules, require
from autotune.families.se_resnet9.common import require_anchors
from autotune.families.sm90.common import LOADED_BYTES_A_CYCLE, HopperFamily
from autotune.families.sm90.se_resnet9.strip_se_block import FILTER_LAUNCHES, filter_launches
from autotune.ir import Epilogue, SeBlock, StemSeBlock

P = TypeVar("P", bound=SeBlock | StemSeBlock)

_CHANNELS = (32, 64)
_MAX_SUMS = 64  # registers of a thread; others hold values that are loaded early for the sums
_MAX_HIDDEN = 64
_TILE_LATENCY = 4000  # cycles of a tile, divided by its warpgroups: an estimate for an H200


@dataclass(frozen=True)
class SeBlockShape(ConfigNumbers):
    """A config by name; groups: warpgroups that multiply."""

    tile_m: int
    pixels: int  # of an image
    channels: int
    groups: int
    cluster: int

    @property
    def accumulators(self) -> int:
        """Registers of each thread that hold sums."""
        return self.tile_m // self.groups // 64 * self.channels // 2

    @property
    def weight_bytes(self) -> int:
        """Shared memory of both filters."""
        return 2 * 9 * self.channels**2 * 2


def _tiles(problem: SeBlock, x: SeBlockShape) -> int:
    return ceil_div(problem.n * problem.h * problem.w, x.tile_m)


class SeBlockFamily(HopperFamily[P]):
    """Kernels of a residual block, with or without a network's first layer before it."""

    template = "sm90/se_resnet9/block/se_block.cu.j2"
    parameters: tuple[Parameter, ...] = (
        Parameter("tile_m", (64, 128, 256), "pixels of a tile of whole images"),
        Parameter("pixels", (64, 128, 256), "pixels of an image"),
        Parameter("channels", _CHANNELS, "channels, in and out"),
        Parameter("groups", (1, 2, 4), "warpgroups that multiply"),
        Parameter("cluster", (1, 2, 4), "blocks that share their loads of the filters"),
    )
    launch_parameters: tuple[Parameter, ...] = FILTER_LAUNCHES

    @abstractmethod
    def block(self, problem: P) -> SeBlock:
        """Return the block."""

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        x = SeBlockShape.from_config(config)
        yield from se_gate.epilogue_rules(epilogue)
        yield require(x.tile_m % x.pixels == 0, f"tile_m must be a multiple of the pixels of an image, {x.pixels}")
        yield require(x.tile_m % (64 * x.groups) == 0, "tile_m must be a multiple of 64 rows per warpgroup")
        yield require(
            x.accumulators <= _MAX_SUMS, f"a thread must have at most {_MAX_SUMS} sums; it has {x.accumulators}"
        )

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: P | None
    ) -> Sequence[Value]:
        if problem is None:
            return parameter.values
        block = self.block(problem)
        pixels = block.h * block.w
        match parameter.name:
            case "channels":
                return (block.c,)
            case "pixels":
                return (pixels,)
            case "tile_m":
                return [m for m in parameter.values if int(m) % pixels == 0 and int(m) < 2 * pixels * block.n]
        return parameter.values

    def unsupported(self, problem: P) -> Rules:
        block = self.block(problem)
        yield require(
            block.c in _CHANNELS,
            f"c must be one of {', '.join(map(str, _CHANNELS))}: both filters stay in shared memory",
        )
        pixels = block.h * block.w
        squares = block.h % 8 == 0 and block.w % 8 == 0
        yield require(squares and 256 % pixels == 0, "images must have 64, 128 or 256 pixels, in squares of 8 x 8")
        yield require(
            block.hidden % 4 == 0 and block.hidden <= _MAX_HIDDEN,
            f"hidden must be a multiple of 4, at most {_MAX_HIDDEN}",
        )
        yield require(block.n * pixels < 2**31, "tensors must have fewer than 2^31 pixels")

    def unfit(self, problem: P, config: Config, arch: Architecture) -> Rules:
        x, block = SeBlockShape.from_config(config), self.block(problem)
        pixels = block.h * block.w
        yield require(x.channels == block.c, f"it has {x.channels} channels; the problem has {block.c}")
        yield require(x.pixels == pixels, f"its images have {x.pixels} pixels; the problem's have {pixels}")

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        x = SeBlockShape.from_config(config)
        return filter_launches(_tiles(self.block(problem), x), x.cluster, arch)

    def cost(self, problem: P, config: Config, arch: Architecture) -> float:
        """Estimate cycles: the filters' loads, then rounds of tiles."""
        x = SeBlockShape.from_config(config)
        rounds = ceil_div(_tiles(self.block(problem), x), arch.processors_for(x.cluster))
        arithmetic = 2 * 9 * x.tile_m * x.channels**2 / arch.wgmma_rate
        latency = _TILE_LATENCY / x.groups
        return x.weight_bytes / 2 / x.cluster / LOADED_BYTES_A_CYCLE + rounds * (arithmetic + latency)

    def label(self, config: Config) -> str:
        shared = f" c{config['cluster']}" if config["cluster"] != 1 else ""
        return f"{config['tile_m']}x{config['channels']} {config['groups']}wg{shared}"

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**super().context(config, arch, dtype), "image": 0}  # no stem

    def weight_layouts(self, config: Config) -> Mapping[str, str]:
        return {"weight1": "wgmma", "weight2": "wgmma"}


class Sm90SeBlock(SeBlockFamily[SeBlock]):
    """A residual block with squeeze-and-excitation in one kernel for Hopper; fp16 and bf16 with float32 sums, NHWC.

    An SM has whole images and both filters in its shared memory.
    """

    name = "sm90_se_block"
    operator = SeBlock

    def block(self, problem: SeBlock) -> SeBlock:
        return problem

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield require_anchors(epilogue, SeBlock)
        yield from super().illegal(config, arch, dtype, epilogue)


FAMILIES = (Sm90SeBlock(),)
