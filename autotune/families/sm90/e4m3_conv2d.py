"""sm90_conv2d for e4m3: the same kernels with float32 sums, and one parameter more.

A tensor core rounds sums of e4m3 products to about 14 bits (ir/byte_sums.py). `promote` says how often float32
registers take them over, which costs time and twice the registers. Kernels whose sums would be too inexact do not fit
a problem. It is a family of its own because a parameter of sm90_conv2d would be one of all kernels that databases hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import Config, Parameter, Value, replace
from autotune.families.base import RecordFamily as Family
from autotune.families.rules import require
from autotune.families.sm90.conv2d import FAMILY as CONV2D
from autotune.families.sm90.conv2d_loads import Solved
from autotune.ir import MAX_SUM_ERROR, Conv2d, Gemm, Problem, sum_error

P = TypeVar("P", bound=Problem)

PROMOTE = Parameter("promote", (0, 1, 2, 4), "steps after which float32 registers take over the sums; 0: never")


def _candidate_values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: Solved | None
) -> Sequence[Value]:
    if parameter is PROMOTE:
        return parameter.values
    return CONV2D.candidate_values(parameter, chosen, arch, dtype, problem)


def _why_inexact(problem: Problem, config: Config) -> str | None:
    """Return why a kernel's sums are too inexact for a problem; None if they are not."""
    error = sum_error(problem, config)
    return require(
        error <= MAX_SUM_ERROR,
        f"sums that are promoted so rarely are off by up to {error:.2%} of their spread; at most {MAX_SUM_ERROR:.2%} "
        "is allowed",
    )


def exact_enough(base: Family[P]) -> Callable[[P, Config, Architecture], str | None]:
    """Return `why_unfit` of a family that also refuses kernels whose sums are too inexact for a problem."""
    return lambda problem, config, arch: base.why_unfit(problem, config, arch) or _why_inexact(problem, config)


def promoted_label(base: Family[P]) -> Callable[[Config], str]:
    """Return `label` of a family with how often the sums are promoted, if they are."""
    return lambda config: base.label(config) + (f" promote{config['promote']}" if config["promote"] else "")


FAMILY = replace(
    CONV2D,
    name="sm90_e4m3_conv2d",
    operator=(Conv2d, Gemm),
    dtypes=("e4m3",),
    parameters=(*CONV2D.parameters, PROMOTE),
    candidate_values=_candidate_values,
    why_unfit=exact_enough(CONV2D),
    label=promoted_label(CONV2D),
)
