"""Families of pools and depthwise convolutions whose kernels are compiled for square windows of some sides and strides.

A kernel with filter=0 and stride=0 takes any other window at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import Config, ConfigNumbers, Parameter, Rules, Value, require
from autotune.families.cuda.common import VectorFamily
from autotune.ir import DTYPES, Epilogue
from autotune.ir.operators import Conv2d, Pool2d

P = TypeVar("P", bound=Conv2d | Pool2d)

POOL_FILTERS = (2, 3)
"""Sides of the windows of pools that kernels are compiled for."""
STRIDES = (1, 2)
"""Strides of both axes that kernels are compiled for."""


def parameters(filters: tuple[int, ...] = POOL_FILTERS, what: str = "window") -> tuple[Parameter, Parameter]:
    """Return the parameters `filter` and `stride`; `what` is the field's word for the window."""
    return (
        Parameter("filter", (0, *filters), f"side of the {what}; 0: any"),
        Parameter("stride", (0, *STRIDES), "stride of both axes; 0: any"),
    )


@dataclass(frozen=True)
class WindowTile(ConfigNumbers):
    """The outputs of a thread. filter, stride: 0 if they are not known when the kernel is compiled."""

    filter: int
    stride: int
    vector: int
    columns: int
    rows: int
    threads: int

    def registers(self, dtype: str) -> int:
        """Return the registers of a thread for float32 results and one input row."""
        line = (self.columns - 1) * self.stride + self.filter if self.filter else 1
        return self.rows * self.columns * self.vector + ceil(line * self.vector * DTYPES[dtype].itemsize / 4)


class WindowFamily(VectorFamily[P]):
    """Kernels with a window; each is compiled for one window, or for any.

    Attributes:
        filters: Sides of the windows that kernels are compiled for.
    """

    filters: tuple[int, ...] = POOL_FILTERS

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        both = (config["filter"] == 0) == (config["stride"] == 0)
        yield require(both, "filter and stride must both be given, or both be 0")

    def decided(self, problem: P) -> Mapping[str, Value]:
        square = problem.r == problem.s and problem.stride[0] == problem.stride[1]
        dense = not isinstance(problem, Conv2d) or problem.dilation == (1, 1)
        in_list = problem.r in self.filters and problem.stride[0] in STRIDES
        side, stride = (problem.r, problem.stride[0]) if square and dense and in_list else (0, 0)
        return {"filter": side, "stride": stride}
