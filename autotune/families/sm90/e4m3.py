"""Families of sm90 for e4m3: the same kernels with float32 sums, and one parameter more.

A tensor core rounds sums of e4m3 products to about 14 bits (ir/reference.py). `promote` says how often float32
registers take them over, which costs time and twice the registers. They are families of their own because a parameter
of the others would be one of all kernels that databases hold.
"""

from __future__ import annotations

from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import Config, Parameter, Rules, require
from autotune.families.sm90.common import HopperFamily
from autotune.families.sm90.conv2d import Conv2dFamily
from autotune.families.sm90.conv2d_skip import Sm90Conv2dSkip
from autotune.families.sm90.image_conv2d import Sm90ImageConv2d, Solved
from autotune.ir import MAX_SUM_ERROR, Problem, sum_error
from autotune.ir.operators import Conv2d, Conv2dSkip, Gemm

P = TypeVar("P", bound=Problem)

_PROMOTE = Parameter("promote", (0, 1, 2, 4), "steps after which float32 registers take over the sums; 0: never")


class E4m3Family(HopperFamily[P]):
    """Kernels of e4m3 products, of which those with too inexact sums do not fit a problem."""

    dtypes: tuple[str, ...] = ("e4m3",)

    def unfit(self, problem: P, config: Config, arch: Architecture) -> Rules:
        yield from super().unfit(problem, config, arch)
        error = sum_error(problem, config)
        yield require(
            error <= MAX_SUM_ERROR,
            f"sums that are promoted so rarely are off by up to {error:.2%} of their spread; at most "
            f"{MAX_SUM_ERROR:.2%} is allowed",
        )

    def label(self, config: Config) -> str:
        return super().label(config) + (f" promote{config['promote']}" if config["promote"] else "")


class Sm90E4m3Conv2d(E4m3Family[Conv2d | Gemm], Conv2dFamily[Conv2d | Gemm]):
    """sm90_conv2d for e4m3: the same kernels with float32 sums, and one parameter more."""

    name = "sm90_e4m3_conv2d"
    operator = (Conv2d, Gemm)
    parameters = (*Conv2dFamily.parameters, _PROMOTE)


class Sm90E4m3Conv2dSkip(E4m3Family[Conv2dSkip], Sm90Conv2dSkip):
    """sm90_conv2d_skip for e4m3: the same kernels with float32 sums.

    No kernel promotes its sums: a thread has those of two convolutions, and no registers for more.
    """

    name = "sm90_e4m3_conv2d_skip"
    parameters = (
        *Sm90Conv2dSkip.parameters,
        Parameter("promote", (0,), "0: float32 registers never take over the sums"),
    )


class Sm90E4m3ImageConv2d(E4m3Family[Solved], Sm90ImageConv2d):
    """sm90_image_conv2d for e4m3: the same kernels of plain convolutions with float32 sums."""

    name = "sm90_e4m3_image_conv2d"
    operator = Conv2d
    # The bound of the sums' error reads tile_k. It takes a sum for one of all steps, although each of the two
    # warpgroups adds half of them, one step more or less.
    parameters = (*Sm90ImageConv2d.parameters, Parameter("tile_k", (128,), "input channels a step"), _PROMOTE)


FAMILIES = (Sm90E4m3Conv2d(), Sm90E4m3Conv2dSkip(), Sm90E4m3ImageConv2d())
