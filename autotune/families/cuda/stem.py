"""Convolutions of up to four channels on tensor cores, such as a network's first: templates/cuda/stem.cuh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import Config, Parameter, Rules, Value, require
from autotune.families.cuda.few_channels import FewChannelsFamily, parameters, widest_access, window_rules
from autotune.ir import BYTE_FORMATS, Epilogue
from autotune.ir.operators import Conv2d, FirstLayers, Stem, StemCast

P = TypeVar("P", bound=FirstLayers)

_POOL = Parameter("pool", (0, 1), "1: the 3x3 max pool with stride 2 behind the convolution")
_STRIDES = (1, 2)


class _StemFamily(FewChannelsFamily[P]):
    """Convolutions of NCHW images with stride 2, with a max pool or without."""

    def unsupported(self, problem: P) -> Rules:
        yield require(
            (problem.pool, problem.pool_stride, problem.pool_pad) in ((1, 1, 0), (3, 2, 1)),
            "the pool must be 3x3 with stride 2 and padding 1, or absent",
        )
        yield from window_rules(problem, (2,))
        yield require(problem.w % 2 == 0, "w must be a multiple of 2")

    def decided(self, problem: P) -> Mapping[str, Value]:
        access = widest_access(problem.w)
        return {**super().decided(problem), "pool": int(problem.pool > 1), "access": access}


class CudaStem(_StemFamily[Stem]):
    """A network's first convolution with its max pool, from NCHW to NHWC."""

    name = "cuda_stem"
    operator = Stem
    parameters = parameters(_POOL)


class CudaStemCast(_StemFamily[StemCast]):
    """The same with a cast, for layers in 8 bits."""

    name = "cuda_stem_cast"
    operator = StemCast
    parameters = parameters(_POOL, Parameter("result", tuple(BYTE_FORMATS), "dtype of the output"))

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield require(config["result"] in arch.dtypes, f"{arch.name} has no {config['result']}")
        yield from super().illegal(config, arch, dtype, epilogue)

    def decided(self, problem: StemCast) -> Mapping[str, Value]:
        return {**super().decided(problem), "result": problem.result}


class CudaNarrowConv2d(FewChannelsFamily[Conv2d]):
    """Convolutions of channels-last images."""

    name = "cuda_narrow_conv2d"
    operator = Conv2d
    parameters = parameters(Parameter("stride", _STRIDES, "of both axes"))

    def unsupported(self, problem: Conv2d) -> Rules:
        yield require(problem.groups == 1 and problem.dilation == (1, 1), "groups and dilation must be 1")
        even = problem.stride[0] * problem.c % 2 == 0 and problem.w * problem.c % 2 == 0
        yield require(even, "stride times c and w times c must be even: lines begin at whole 32-bit words")
        yield from window_rules(problem, _STRIDES)

    def decided(self, problem: Conv2d) -> Mapping[str, Value]:
        access = widest_access(problem.w * problem.c)
        return {**super().decided(problem), "stride": problem.stride[0], "access": access}


FAMILIES = (CudaStem(), CudaStemCast(), CudaNarrowConv2d())
