"""A convolution and the squeeze-and-excitation after it as one layer, also with the projection that is added.

The gates are computed from the result, or by a filter of the convolution's input (folded).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from autotune.ir.alternatives.joining import add_arguments, fields_without_epilogue, joined, joint_problem
from autotune.ir.alternatives.wiring import Wiring
from autotune.ir.constant_expr import ConstantExpr, ConstantSource
from autotune.ir.epilogue import Epilogue
from autotune.ir.network import Alternative, Layer
from autotune.ir.operators import Conv2d, Conv2dFoldedSe, Conv2dSe, Conv2dSeSkip, SeTail


def gated_convolutions(wiring: Wiring, conv: Layer) -> Iterator[Alternative]:
    """Yield a convolution together with the squeeze-and-excitation after it."""
    tail = wiring.successor(conv) if isinstance(conv.problem, Conv2d) else None
    if tail is None or not isinstance(tail.problem, SeTail) or "store" in conv.problem.epilogue.names:
        return
    both = fold_gate(conv, tail, f"{tail.name}.folded") or _with_gate(conv, tail, f"{tail.name}.gated", Conv2dSe, {})
    if both:
        yield Alternative(both.name, (conv.name, tail.name), (both,))


def fold_gate(conv: Layer, tail: Layer, name: str) -> Layer | None:
    """Return both as one layer whose hidden values are computed by a filter of the convolution's input, if one can."""
    squeeze = squeeze_of_input(conv, tail)
    return _with_gate(conv, tail, name, Conv2dFoldedSe, squeeze) if squeeze else None


def squeeze_of_input(conv: Layer, excite: Layer) -> dict[str, ConstantSource] | None:
    """Return the filter w1 and the bias b1 that compute the hidden values from the mean of a convolution's input.

    None if the convolution has groups, or an epilogue that is not linear: the mean must commute with it.
    """
    product = conv.problem
    assert isinstance(product, Conv2d)
    factors = _affine(conv)
    if factors is None or product.groups > 1:
        return None
    scale, shift = factors
    w1, b1 = excite.weights["w1"], excite.weights["b1"]
    filters = ConstantExpr("squeeze_filter", (conv.weights["weight"], w1, *([scale] if scale else [])))
    return {"w1": filters, "b1": ConstantExpr("squeeze_bias", (b1, w1, shift)) if shift else b1}


def _with_gate(
    conv: Layer, tail: Layer, name: str, kind: type[Conv2dSe | Conv2dFoldedSe], changed: dict[str, ConstantSource]
) -> Layer | None:
    """Return both as one layer of the operator `kind`; `changed` are its weights that are not the tail's own.

    None if one layer cannot have the scalars of both.
    """
    gate = tail.problem
    assert isinstance(gate, SeTail)
    names = (*conv.problem.epilogue.names, "gate", *gate.epilogue.names)
    problem = joint_problem(kind, names, **fields_without_epilogue(conv.problem), hidden=gate.hidden)
    buffers = {"x": conv.buffers["x"], "y": tail.buffers["y"]}
    weights = {"weight": conv.weights["weight"], **{key: tail.weights[key] for key in ("w1", "b1", "w2", "b2")}}
    return joined(problem, (conv, tail), name, buffers, weights | changed)


def _affine(layer: Layer) -> tuple[ConstantSource | None, ConstantSource | None] | None:
    """Return factor and summand if the layer's epilogue is value * factor + summand, else None."""
    scale: ConstantSource | None = None
    shift: ConstantSource | None = None
    for step in layer.problem.epilogue.steps:
        if step.name not in ("bias", "add_scalar", "scale", "mul_scalar"):
            return None
        (argument,) = step.arguments
        value = layer.scalars[argument.index] if argument.kind == "scalar" else layer.weights[argument.name]
        if step.name in ("bias", "add_scalar"):
            shift = ConstantExpr("sum", (shift, value)) if shift else value
        else:
            scale = ConstantExpr("product", (scale, value)) if scale else value
            shift = ConstantExpr("product", (shift, value)) if shift else None
    return scale, shift


def fuse_projection(gate: Layer, project: Layer, name: str) -> Layer | None:
    """Return a gated convolution and the 1x1 convolution that makes its identity as one layer.

    None unless the result of `project` is added directly after the gate, and `project` has no epilogue, groups, stride
    or padding. If the first works on images of one pixel (see whole_images.py), the projection becomes one in groups,
    one group per pixel.
    """
    problem, conv = gate.problem, project.problem
    assert isinstance(problem, Conv2dFoldedSe) and isinstance(conv, Conv2d)
    names = list(problem.epilogue.names)
    after_gate = names.index("gate") + 1
    added = problem.epilogue.steps[after_gate].arguments if names[after_gate : after_gate + 1] == ["add"] else ()
    plain = conv.is_product and not conv.epilogue.names
    if not added or gate.buffers[added[0].name] != project.buffers["y"] or not plain:
        return None
    groups = problem.k // conv.k
    skip = Conv2dSeSkip(
        **fields_without_epilogue(problem),
        skip_c=groups * conv.c,
        skip_groups=groups,
        epilogue=Epilogue((*names[:after_gate], "project", *names[after_gate + 1 :])),
    )
    weight = project.weights["weight"]
    tiled = ConstantExpr("tile", (weight,), (groups, 1, 1, 1)) if groups > 1 else weight
    own = {argument.name for argument in problem.epilogue.arguments}
    buffers = {key: value for key, value in gate.buffers.items() if key not in own}
    weights = {key: value for key, value in gate.weights.items() if key not in own}
    kept = [argument for argument in problem.epilogue.arguments if argument not in added]
    add_arguments([(gate, argument) for argument in kept], skip.epilogue.arguments, buffers, weights)
    buffers["skip"], weights["projection"] = project.buffers["x"], tiled
    return dataclasses.replace(gate, name=name, problem=skip, buffers=buffers, weights=weights)
