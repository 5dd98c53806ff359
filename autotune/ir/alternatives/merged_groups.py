"""A grouped convolution with few channels in a group, as one with fewer and wider groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.constant_expr import ConstantExpr
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import Conv2d

_MERGED = (32, 64)
"""Channels of a merged group: they fill a tensor-core instruction, so the products with zeros cost little."""


def merged_groups(_: Wiring, conv: Layer) -> Iterator[Alternative]:
    """Yield a grouped convolution with several of its groups merged into one."""
    problem = conv.problem
    if not isinstance(problem, Conv2d) or problem.groups == 1 or problem.dtype not in ("f16", "bf16"):
        return
    least = min(problem.c, problem.k) // problem.groups
    for width in (width for width in _MERGED if least > 1):
        merged, rest = divmod(width, least)
        if merged > 1 and rest == 0 and problem.groups % merged == 0:
            weight = ConstantExpr("merge_groups", (conv.weights["weight"],), (problem.groups, merged))
            fewer = dataclasses.replace(
                conv,
                name=f"{conv.name}.g{problem.groups // merged}",
                problem=dataclasses.replace(problem, groups=problem.groups // merged),
                weights={**conv.weights, "weight": weight},
            )
            yield Alternative(fewer.name, (conv.name,), (fewer,))
