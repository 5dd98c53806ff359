"""Every operator by name: those of this package, and those that users define."""

from __future__ import annotations

import dataclasses
import re

from autotune.core import ProblemError
from autotune.ir.problem.base import Problem
from autotune.ir.problem.operators.convolution import Conv2d, Conv2dDgrad, Conv2dWgrad, Gemm, PatchConv2d
from autotune.ir.problem.operators.fused import (
    Conv2dFoldedSe,
    Conv2dSe,
    Conv2dSeSkip,
    SeBlock,
    SeDownBlock,
    SeTail,
    Stem,
    StemSeBlock,
    StemSeBlockPool,
)
from autotune.ir.problem.operators.pixels import Cast, Elementwise, SpaceToDepth, ToChannelsLast
from autotune.ir.problem.operators.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d

OPERATORS: dict[str, type[Problem]] = {
    cls.operator: cls
    for cls in (
        *(Conv2d, Conv2dSe, Conv2dFoldedSe, Conv2dSeSkip, PatchConv2d, Conv2dDgrad, Conv2dWgrad, Gemm),
        *(AvgPool2d, MaxPool2d, GlobalAvgPool2d, Elementwise, Cast),
        *(ToChannelsLast, SpaceToDepth, Stem, SeTail, SeBlock, StemSeBlock, StemSeBlockPool, SeDownBlock),
    )
}


def register(cls: type[Problem]) -> type[Problem]:
    """Make a problem from outside this package known, as a decorator of its class; raises ProblemError.

    Its kernels are given the struct `at_<operator>`, which is declared for them from `sizes`.
    """
    for name in (cls.operator, *cls.sizes.split()):
        if not re.fullmatch(r"[a-z]\w*", name):
            raise ProblemError(f"{cls.__name__}: '{name}' cannot be a name in C: use small letters, digits and _")
    fields = {field.name for field in dataclasses.fields(cls)}
    if unknown := [name for name in cls.sizes.split() if name not in fields and not hasattr(cls, name)]:
        raise ProblemError(f"{cls.__name__}: sizes names {', '.join(unknown)}, which the problem does not have")
    if cls.operator in OPERATORS:
        raise ProblemError(f"{cls.__name__}: there is already an operator '{cls.operator}'")
    OPERATORS[cls.operator] = cls
    return cls
