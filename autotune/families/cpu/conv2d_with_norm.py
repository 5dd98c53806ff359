"""Families of convolutions on the CPU that compute a part of a batch normalization behind their result."""

from __future__ import annotations

from typing import TypeVar

from autotune.families.base import Family
from autotune.families.cpu import tiles
from autotune.families.cpu.conv2d import extents
from autotune.ir import Conv2dGradientSums, Conv2dStatistics

P = TypeVar("P", Conv2dStatistics, Conv2dGradientSums)


def conv2d_with_norm(operator: type[P]) -> Family[P]:
    """Return the family for an operator; it is named for it, and so is its template."""
    return tiles.family(
        f"cpu_{operator.operator}",
        operator,
        header="cpu/conv2d.h",
        pixels="ForwardPixels",
        extents=lambda problem, config: extents(problem.convolution, config),
        layout="k",
        template=f"cpu/{operator.operator}.cpp.j2",
    )
