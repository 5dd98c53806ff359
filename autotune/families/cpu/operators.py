"""Operators other than convolutions on the CPU: images, rows or pixels in parallel, channels in vector registers."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core import Architecture
from autotune.families.base import CHANNELS_LAST, Config, Launch, Parameter, Rules, Value, require
from autotune.families.cpu.common import BLOCK_C, THREADS, WITH_BYTES, ChannelsFamily, CpuFamily
from autotune.families.shared_rules import ACT, GATE, LINEAR, RESULT, ActivationsFamily, CastFamily, UpsampleFamily
from autotune.ir.operators import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNormGradient,
    BatchNormGradientSums,
    BatchNormStatistics,
    Cast,
    ClippedAvgPool2d,
    Concat,
    DepthToSpace,
    Elementwise,
    GlobalAvgPool2d,
    GroupNorm,
    GroupStatistics,
    LayerNorm,
    MaxPool2d,
    MaxPool2dPlaces,
    MaxPool2dPlacesGradient,
    Normalize,
    ReluGradientSums,
    SeTail,
    Softmax,
    SpaceToDepth,
    SqueezeExcite,
    ToChannelsLast,
    Upsample,
)


class CpuCast(CastFamily, ChannelsFamily[Cast]):
    """The kernel of a lone epilogue, which stores another dtype."""

    parameters = (RESULT, BLOCK_C)


class CpuUpsample(UpsampleFamily, ChannelsFamily[Upsample]):
    """Resizing: rows in parallel."""

    parameters = (BLOCK_C, LINEAR)


class CpuSqueezeExcite(ActivationsFamily[SqueezeExcite], ChannelsFamily[SqueezeExcite]):
    """Squeeze-and-excitation with any activations: images in parallel, each in one pass while it is in cache."""

    parameters = (BLOCK_C, ACT, GATE)


class CpuConcat(ChannelsFamily[Concat]):
    """Concatenation, with a shuffle of channels or without."""

    parameters = (Parameter("interleave", (1, 0), "1: no shuffle; 0: any"), BLOCK_C)

    def decided(self, problem: Concat) -> Mapping[str, Value]:
        return {"interleave": int(problem.interleave == 1)}

    def cost(self, problem: Concat, config: Config, arch: Architecture) -> float:
        """Return the steps of the loops over a pixel's channels; those behind a block are processed one by one."""
        sizes = [piece.count for piece in problem.pieces] if problem.interleave == 1 else [problem.c]
        return sum(sum(divmod(size, int(config["block_c"]))) for size in sizes)


class CpuSpaceToDepth(CpuFamily[SpaceToDepth]):
    """NCHW patches to NHWC channels: rows in parallel."""

    name = "cpu_space_to_depth"
    operator = SpaceToDepth
    template = "cpu/space_to_depth.cpp.j2"
    parameters = ()
    launch_parameters = (THREADS, CHANNELS_LAST)

    def unsupported(self, problem: SpaceToDepth) -> Rules:
        yield require(not problem.epilogue.steps, "the epilogue must be empty")

    def launches(self, problem: SpaceToDepth, config: Config, arch: Architecture) -> list[Launch]:
        return [{**launch, CHANNELS_LAST.name: 0} for launch in super().launches(problem, config, arch)]

    def cost(self, problem: SpaceToDepth, config: Config, arch: Architecture) -> float:
        """Return 0: there is one config."""
        return 0.0


_POOL = "cpu/pool2d.cpp.j2"

FAMILIES = (
    ChannelsFamily(AdaptiveAvgPool2d, _POOL, WITH_BYTES, maximum=False, window="adaptive"),
    ChannelsFamily(AvgPool2d, _POOL, WITH_BYTES, maximum=False, window="counted"),
    ChannelsFamily(ClippedAvgPool2d, _POOL, WITH_BYTES, maximum=False, window="clipped"),
    ChannelsFamily(MaxPool2d, _POOL, WITH_BYTES, maximum=True, window="clipped"),
    ChannelsFamily(MaxPool2dPlaces),
    ChannelsFamily(MaxPool2dPlacesGradient),
    ChannelsFamily(GlobalAvgPool2d, dtypes=WITH_BYTES),
    ChannelsFamily(BatchNormStatistics),
    ChannelsFamily(BatchNormGradientSums),
    ChannelsFamily(BatchNormGradient),
    ChannelsFamily(ReluGradientSums),
    ChannelsFamily(GroupNorm),
    ChannelsFamily(GroupStatistics),
    ChannelsFamily(Normalize),
    ChannelsFamily(LayerNorm),
    ChannelsFamily(Softmax),
    ChannelsFamily(Elementwise, dtypes=WITH_BYTES),
    ChannelsFamily(DepthToSpace),
    ChannelsFamily(ToChannelsLast),
    ChannelsFamily(SeTail, act="relu", gate="sigmoid"),
    CpuSqueezeExcite(SqueezeExcite, "cpu/se_tail.cpp.j2"),
    CpuUpsample(Upsample),
    CpuCast(Cast, "cpu/elementwise.cpp.j2", WITH_BYTES),
    CpuConcat(Concat, dtypes=WITH_BYTES),
    CpuSpaceToDepth(),
)
