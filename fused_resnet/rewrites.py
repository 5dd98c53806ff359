"""Two layers as one that computes the same, with weights computed from theirs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from autotune.epilogue import Epilogue
from autotune.problem import AvgPool2d, Conv2d, Conv2dSe, SeTail
from fused_resnet.derived import Derived

if TYPE_CHECKING:
    from fused_resnet.graph import Layer


def pooled_projection(pool: Layer, conv: Layer, name: str) -> Layer:
    """An average pool and a 1x1 convolution with stride 1 are one convolution of the pool's window."""
    window, product = pool.problem, conv.problem
    assert isinstance(window, AvgPool2d) and isinstance(product, Conv2d)
    sizes = {size: getattr(window, size) for size in ("h", "w", "r", "s", "stride", "pad")}
    weight = Derived("pool_filter", (conv.weights["weight"],), (window.r, window.s))
    return dataclasses.replace(
        conv,
        name=name,
        problem=dataclasses.replace(product, **sizes),
        buffers={**conv.buffers, "x": pool.buffers["x"]},
        weights={**conv.weights, "weight": weight},
    )


def gated(conv: Layer, tail: Layer, name: str) -> Layer:
    """A convolution with the squeeze-and-excitation behind it: what lies between stays on the chip."""
    product, gate = conv.problem, tail.problem
    assert isinstance(product, Conv2d) and isinstance(gate, SeTail)
    before, after = product.epilogue, gate.epilogue
    sizes = {f.name: getattr(product, f.name) for f in dataclasses.fields(product) if f.name != "epilogue"}
    problem = Conv2dSe(**sizes, hidden=gate.hidden, epilogue=Epilogue((*before.names, "gate", *after.names)))
    # The steps' operands are numbered along the chain, so those of the tail have other names in it.
    old = [*((conv, argument) for argument in before.arguments), *((tail, argument) for argument in after.arguments)]
    buffers = {"x": conv.buffers["x"], "y": tail.buffers["y"]}
    weights = {"weight": conv.weights["weight"], **{key: tail.weights[key] for key in ("w1", "b1", "w2", "b2")}}
    for (layer, argument), renamed in zip(old, problem.epilogue.arguments, strict=True):
        if argument.kind == "vector":
            weights[renamed.name] = layer.weights[argument.name]
        elif argument.kind != "scalar":
            buffers[renamed.name] = layer.buffers[argument.name]
    scalars = (*conv.scalars, *tail.scalars)
    return dataclasses.replace(tail, name=name, problem=problem, buffers=buffers, weights=weights, scalars=scalars)
