"""sm90_conv2d with totals of each channel over all pixels: the same kernels with an epilogue of two passes more.

A block stays in its column of tiles, so that its warps add up the same channels in all tiles. See
templates/sm90/conv2d/column_totals.cuh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Launch, Parameter, Value
from autotune.families.base import RecordFamily as Family
from autotune.families.rules import require
from autotune.families.sm90.conv2d import FAMILY as CONV2D
from autotune.families.sm90.conv2d_loads import merges
from autotune.families.sm90.conv2d_shape import Conv2dShape
from autotune.ir import Conv2dGradientSums, Conv2dStatistics, Epilogue

P = TypeVar("P", Conv2dStatistics, Conv2dGradientSums)

_ONE_VALUE = ("merge", "slices")  # parameters that must be 1
_CYCLES = 8000  # for combining the totals of blocks: an estimate, not fitted


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return require(
        all(config[name] == 1 for name in _ONE_VALUE), "a kernel with totals needs merge=1 and slices=1"
    ) or CONV2D.why_illegal(config, arch, dtype, epilogue)


def _candidate_values(
    parameter: Parameter, chosen: Config, arch: Architecture, dtype: str, problem: P | None
) -> Sequence[Value]:
    values = CONV2D.candidate_values(parameter, chosen, arch, dtype, problem)
    return [value for value in values if value == 1] if parameter.name in _ONE_VALUE else values


def _why_unsupported(problem: P) -> str | None:
    return CONV2D.why_unsupported(problem) or require(
        1 in merges(problem), "a group must have enough channels for a step and a tile of its own"
    )


def _launches(problem: P, config: Config, arch: Architecture) -> list[Launch]:
    """Return the staged launches of sm90_conv2d whose blocks stay in a column, with fewer blocks if that needs it."""
    x = Conv2dShape.from_config(config, problem.dtype)
    columns = ceil_div(ceil_div(problem.k, x.n), x.cluster_n)

    def in_columns() -> Iterator[Launch]:
        for launch in CONV2D.launches(problem, config, arch):
            blocks = int(launch["grid"])
            whole = blocks // (x.cluster * columns) * x.cluster * columns
            if launch["staged"] and not launch["raster"] and (whole or not blocks):
                yield {**launch, "grid": whole}

    return list(in_columns())


def column_totals(operator: type[P], header: str, store: str) -> Family[P]:
    """Return the family for an operator; it is named for it.

    Args:
        operator: The problem that it solves.
        header: The header in templates/sm90/conv2d, without its extension.
        store: The class of that header.
    """
    return Family[P](
        name=f"sm90_{operator.operator}",
        operator=operator,
        kind=CONV2D.kind,
        template=CONV2D.template,
        architectures=CONV2D.architectures,
        dtypes=("f16", "bf16"),
        parameters=CONV2D.parameters,
        launch_parameters=CONV2D.launch_parameters,
        why_illegal=_why_illegal,
        candidate_values=_candidate_values,
        why_unsupported=_why_unsupported,
        why_unfit=CONV2D.why_unfit,
        launches=_launches,
        cost=lambda problem, config, arch: CONV2D.cost(problem, config, arch) + _CYCLES,
        context=lambda config, arch, dtype: {
            **CONV2D.context(config, arch, dtype),
            "totals": header,
            "store": store,
        },
        label=CONV2D.label,
        weight_layouts=CONV2D.weight_layouts,
        compile_seconds=CONV2D.compile_seconds,
    )
