"""Convolutions of up to four channels, channels last, on tensor cores: templates/cuda/stem.cuh."""

from __future__ import annotations

from autotune.families.base import Parameter
from autotune.families.cuda import few_channels
from autotune.ir import Conv2d, Problem

_STRIDES = (1, 2)


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, Conv2d)
    if problem.groups > 1 or problem.dilation != (1, 1):
        return "no groups and no dilation"
    if problem.stride[0] * problem.c % 2 or problem.w * problem.c % 2:
        return "stride times c, and w times c, must be even"
    return few_channels.unserved(problem, _STRIDES)


def _asked(problem: Problem) -> dict[str, int]:
    assert isinstance(problem, Conv2d)
    access = few_channels.widest(problem.w * problem.c)
    return {"filter": problem.r, "channels": problem.c, "stride": problem.stride[0], "access": access}


FAMILY = few_channels.family(
    "cuda_narrow_conv2d",
    Conv2d,
    (Parameter("stride", _STRIDES, "of both axes"),),
    _supports,
    _asked,
)
