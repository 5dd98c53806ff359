"""sm90_conv2d with totals of each channel over all pixels: the same kernels with an epilogue of two passes more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Launch, Parameter, Rules, Value, require
from autotune.families.sm90.conv2d import Conv2dFamily
from autotune.families.sm90.conv2d_loads import merges
from autotune.families.sm90.conv2d_shape import Conv2dShape
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2dGradientSums, Conv2dStatistics

P = TypeVar("P", bound=Conv2dStatistics | Conv2dGradientSums)

_ONE_VALUE = ("merge", "slices")  # parameters that must be 1
_CYCLES = 8000  # for combining the totals of blocks: an estimate, not fitted


class ColumnTotalsFamily(Conv2dFamily[P]):
    """Convolutions with totals of each channel.

    A block stays in its column of tiles, so that its warps add up the same channels in all tiles. See
    templates/sm90/conv2d/column_totals.cuh.

    Attributes:
        header: The header in templates/sm90/conv2d, without its extension.
        store: The class of that header.
    """

    header: str
    store: str

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield require(all(config[name] == 1 for name in _ONE_VALUE), "a kernel with totals needs merge=1 and slices=1")
        yield from super().illegal(config, arch, dtype, epilogue)

    def candidate_values(
        self, parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: P | None
    ) -> Sequence[Value]:
        values = super().candidate_values(parameter, chosen, arch, dtype, problem)
        return [value for value in values if value == 1] if parameter.name in _ONE_VALUE else values

    def unsupported(self, problem: P) -> Rules:
        yield from super().unsupported(problem)
        yield require(1 in merges(problem), "a group must have enough channels for a step and a tile of its own")

    def launches(self, problem: P, config: Config, arch: Architecture) -> list[Launch]:
        """Return the staged launches of sm90_conv2d whose blocks stay in a column, with fewer blocks if need be."""
        x, found = Conv2dShape.from_config(config, problem.dtype), list[Launch]()
        columns = ceil_div(ceil_div(problem.k, x.n), x.cluster_n)
        for launch in super().launches(problem, config, arch):
            blocks = launch["grid"]
            whole = blocks // (x.cluster * columns) * x.cluster * columns
            if launch["staged"] and not launch["raster"] and (whole or not blocks):
                found.append({**launch, "grid": whole})
        return found

    def cost(self, problem: P, config: Config, arch: Architecture) -> float:
        return super().cost(problem, config, arch) + _CYCLES

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**super().context(config, arch, dtype), "totals": self.header, "store": self.store}


class Sm90Conv2dStatistics(ColumnTotalsFamily[Conv2dStatistics]):
    """Forward convolution for Hopper with the statistics of the batch normalization behind it."""

    name = "sm90_conv2d_statistics"
    operator = Conv2dStatistics
    header, store = "statistics", "StatisticsStore"


class Sm90Conv2dGradientSums(ColumnTotalsFamily[Conv2dGradientSums]):
    """Input gradient of a convolution behind a norm for Hopper, as a convolution, with sums of the norm's gradient."""

    name = "sm90_conv2d_gradient_sums"
    operator = Conv2dGradientSums
    header, store = "gradient_sums", "GradientSumsStore"


FAMILIES = (Sm90Conv2dStatistics(), Sm90Conv2dGradientSums())
