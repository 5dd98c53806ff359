"""A group normalization as statistics and a pass that normalizes, each of which uses the whole GPU.

A kernel of the whole operator gives the groups of an image to one block or cluster, which a large image keeps busy for
long.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from autotune.ir.alternatives.joining import fields_of
from autotune.ir.alternatives.separate_gates import is_large
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import GroupNorm, GroupStatistics, Normalize

_WIDEST_GROUP = 256
"""Channels of a group that a block of the kernels of statistics takes."""


def separate_norms(_: Wiring, norm: Layer) -> Iterator[Alternative]:
    """Yield the two layers."""
    problem = norm.problem
    if not isinstance(problem, GroupNorm) or problem.c // problem.groups > _WIDEST_GROUP or not is_large(problem):
        return
    name, x = f"{norm.name}.apart", norm.buffers["x"]
    made = f"{x}.{norm.name}.statistics"
    statistics = Layer(
        f"{name}.statistics",
        GroupStatistics(**fields_of(problem, "n h w c groups dtype")),
        {"x": x, "y": made},
        scalars=norm.scalars[:1],
    )
    normalized = dataclasses.replace(
        norm,
        name=f"{name}.normalized",
        problem=Normalize(**fields_of(problem, "n h w c dtype epilogue")),
        buffers={**norm.buffers, "statistics": made},
        scalars=norm.scalars[1:],
    )
    yield Alternative(name, (norm.name,), (statistics, normalized))
