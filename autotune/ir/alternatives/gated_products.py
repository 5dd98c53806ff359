"""A squeeze-and-excitation and the 1x1 convolution after it, as its gates and a product that scales its input."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from autotune.ir.alternatives.joining import add_arguments, fields_of, joint_problem
from autotune.ir.alternatives.separate_gates import gate_layers, is_large
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import ConcatConv2d, Conv2d, Piece, SeGates, SeTail, SqueezeExcite


def gated_products(wiring: Wiring, excite: Layer) -> Iterator[Alternative]:
    """Yield the two layers, between which the scaled tensor is not written, also with the gates in three."""
    if not isinstance(excite.problem, SeTail | SqueezeExcite):
        return
    conv = wiring.successor(excite)
    if conv is None or not isinstance(conv.problem, Conv2d) or "store" in excite.problem.epilogue.names:
        return
    if conv.problem.is_product and conv.problem.dtype in ("f16", "bf16"):
        name = f"{conv.name}.scaled"
        parts = _split(excite, conv, name)
        if parts:
            yield Alternative(name, (excite.name, conv.name), parts)
        if parts and is_large(excite.problem):
            gates, product = parts
            layers = (*gate_layers(excite, f"{name}_apart", gates.buffers["y"]), product)
            yield Alternative(f"{name}_apart", (excite.name, conv.name), layers)


def _split(excite: Layer, conv: Layer, name: str) -> tuple[Layer, Layer] | None:
    """Return the gates and the rest as two layers; None if the second cannot have all tensors, scalars and steps."""
    gated, product = excite.problem, conv.problem
    assert isinstance(gated, SeTail | SqueezeExcite) and isinstance(product, Conv2d)
    sizes = fields_of(gated, "n h w dtype")
    made = f"{excite.buffers['x']}.{name}.gates"
    gates = dataclasses.replace(
        excite,
        name=f"{name}.gates",
        problem=SeGates(**sizes, c=gated.c, hidden=gated.hidden, act=gated.act, gate=gated.gate),
        buffers={"x": excite.buffers["x"], "y": made},
        weights={operand: excite.weights[operand] for operand in ("w1", "b1", "w2", "b2")},
        scalars=(),
    )
    names = ("mul_image", *gated.epilogue.names, "conv", *product.epilogue.names)
    problem = joint_problem(ConcatConv2d, names, **sizes, k=product.k, pieces=(Piece.whole(gated.c),))
    if problem is None:
        return None
    scales, *others = problem.epilogue.arguments
    buffers = {"x0": excite.buffers["x"], scales.name: made, "y": conv.buffers["y"]}
    weights = {"weight": conv.weights["weight"]}
    old = [(layer, argument) for layer in (excite, conv) for argument in layer.problem.epilogue.arguments]
    add_arguments(old, others, buffers, weights)
    return gates, Layer(f"{name}.product", problem, buffers, weights, (*excite.scalars, *conv.scalars))
