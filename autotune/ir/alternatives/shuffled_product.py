"""A transposed convolution whose windows do not overlap, as a product and the move of its channels to pixels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.constant_expr import ConstantExpr
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import Conv2d, Conv2dDgrad, DepthToSpace


def shuffled_product(_: Wiring, conv: Layer) -> Iterator[Alternative]:
    """Yield the two layers; the product has no steps, and depth_to_space has the whole chain."""
    problem = conv.problem
    if not isinstance(problem, Conv2dDgrad) or problem.groups != 1:
        return
    if problem.pad != (0, 0) or problem.dilation != (1, 1):
        return
    n, p, q, c, block = problem.n, problem.p, problem.q, problem.c, (problem.r, problem.s)
    if block == (1, 1) or problem.stride != block or (problem.h, problem.w) != (p * block[0], q * block[1]):
        return
    product = Layer(
        name=f"{conv.name}.product",
        problem=Conv2d(n=n, h=p, w=q, c=problem.k, k=block[0] * block[1] * c, dtype=problem.dtype),
        buffers={"x": conv.buffers["dy"], "y": f"{conv.buffers['dy']}.{conv.name}.product"},
        weights={"weight": ConstantExpr("depth_rows", (conv.weights["weight"],))},
    )
    buffers = {key: value for key, value in conv.buffers.items() if key != "dy"}
    shuffle = dataclasses.replace(
        conv,
        name=f"{conv.name}.shuffle",
        problem=DepthToSpace(n=n, h=p, w=q, c=c, block=block, dtype=problem.dtype, epilogue=problem.epilogue),
        buffers={**buffers, "x": product.buffers["y"]},
        weights={key: value for key, value in conv.weights.items() if key != "weight"},
    )
    yield Alternative(shuffle.name, (conv.name,), (product, shuffle))
