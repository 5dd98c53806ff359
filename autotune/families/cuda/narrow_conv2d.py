"""Convolutions of up to four channels, channels last, on tensor cores: templates/cuda/stem.cuh."""

from __future__ import annotations

from autotune.families.base import Parameter
from autotune.families.cuda import few_channels
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import Conv2d

_STRIDES = (1, 2)


def _why_unsupported(problem: Conv2d) -> str | None:
    def rules() -> Rules:
        yield require(problem.groups == 1 and problem.dilation == (1, 1), "groups and dilation must be 1")
        even = problem.stride[0] * problem.c % 2 == 0 and problem.w * problem.c % 2 == 0
        yield require(even, "stride times c and w times c must be even: lines begin at whole 32-bit words")
        yield from few_channels.window_rules(problem, _STRIDES)

    return first_unmet(rules())


def _decided(problem: Conv2d) -> dict[str, int]:
    access = few_channels.widest_access(problem.w * problem.c)
    return {"filter": problem.r, "channels": problem.c, "stride": problem.stride[0], "access": access}


FAMILY = few_channels.family(
    "cuda_narrow_conv2d",
    Conv2d,
    own_parameters=(Parameter("stride", _STRIDES, "of both axes"),),
    why_unsupported=_why_unsupported,
    decided=_decided,
)
