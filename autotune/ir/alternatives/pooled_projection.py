"""An average pool and the 1x1 convolution after it, as one convolution with the pool's window."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from autotune.ir.alternatives.joining import fields_of
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.constant_expr import ConstantExpr
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import AvgPool2d, Conv2d


def pooled_projection(wiring: Wiring, pool: Layer) -> Iterator[Alternative]:
    """Yield both as one convolution."""
    window = pool.problem
    if not isinstance(window, AvgPool2d) or window.epilogue.names:
        return
    conv = wiring.successor(pool)
    if conv is None or not isinstance(conv.problem, Conv2d) or not conv.problem.is_product:
        return
    weight = ConstantExpr("pool_filter", (conv.weights["weight"],), (window.r, window.s))
    both = dataclasses.replace(
        conv,
        name=f"{conv.name}.pooled",
        problem=dataclasses.replace(conv.problem, **fields_of(window, "h w r s stride pad")),
        buffers={**conv.buffers, "x": pool.buffers["x"]},
        weights={**conv.weights, "weight": weight},
    )
    yield Alternative(both.name, (pool.name, conv.name), (both,))
