"""Rewrites around squeeze-and-excitation: its gates joined with the convolution before them, or after them."""

from __future__ import annotations

import dataclasses

from autotune.ir.constant_expr import ConstantExpr, ConstantSource
from autotune.ir.epilogue import Epilogue
from autotune.ir.network import Layer
from autotune.ir.operators import (
    ConcatConv2d,
    Conv2d,
    Conv2dFoldedSe,
    Conv2dSe,
    Conv2dSeSkip,
    Gemm,
    Piece,
    SeGates,
    SeTail,
    SqueezeExcite,
)
from autotune.ir.rewrites import add_arguments, fields_of, fields_without_epilogue, joint_problem


def split_gate(excite: Layer, conv: Layer, name: str) -> tuple[Layer, Layer] | None:
    """Return a squeeze-and-excitation and the 1x1 convolution after it as two layers: the gates, and all the rest.

    The convolution scales its input by the gates, so the scaled tensor is not written. None if one layer cannot have
    all the tensors, scalars and steps of the two.
    """
    gated, product = excite.problem, conv.problem
    assert isinstance(gated, SeTail | SqueezeExcite) and isinstance(product, Conv2d)
    act, gate = (gated.act, gated.gate) if isinstance(gated, SqueezeExcite) else ("relu", "sigmoid")
    sizes = fields_of(gated, "n h w dtype")
    made = f"{excite.buffers['x']}.{name}.gates"
    gates = dataclasses.replace(
        excite,
        name=f"{name}.gates",
        problem=SeGates(**sizes, c=gated.c, hidden=gated.hidden, act=act, gate=gate),
        buffers={"x": excite.buffers["x"], "y": made},
        weights={operand: excite.weights[operand] for operand in ("w1", "b1", "w2", "b2")},
        scalars=(),
    )
    names = ("mul_image", *gated.epilogue.names, "conv", *product.epilogue.names)
    problem = joint_problem(ConcatConv2d, names, **sizes, k=product.k, pieces=(Piece.whole(gated.c),))
    if problem is None:
        return None
    buffers = {"x0": excite.buffers["x"], problem.epilogue.arguments[0].name: made, "y": conv.buffers["y"]}
    weights = {"weight": conv.weights["weight"]}
    old = [(excite, argument) for argument in gated.epilogue.arguments]
    old += [(conv, argument) for argument in product.epilogue.arguments]
    add_arguments(old, problem.epilogue.arguments[1:], buffers, weights)
    return gates, Layer(f"{name}.product", problem, buffers, weights, (*excite.scalars, *conv.scalars))


def fuse_gate(conv: Layer, tail: Layer, name: str) -> Layer | None:
    """Return a convolution and the squeeze-and-excitation after it as one layer, without the tensor between them."""
    return _with_gate(conv, tail, name, Conv2dSe, {})


def fold_gate(conv: Layer, tail: Layer, name: str) -> Layer | None:
    """Return the same with the hidden values computed by a filter of the convolution's input.

    None if the convolution has groups, or an epilogue that is not linear: the mean must commute with it.
    """
    product = conv.problem
    assert isinstance(product, Conv2d)
    affine = _affine(conv)
    if affine is None or product.groups > 1:
        return None
    scale, shift = affine
    filters = ConstantExpr("squeeze_filter", (conv.weights["weight"], tail.weights["w1"], *([scale] if scale else [])))
    bias = tail.weights["b1"]
    if shift:
        bias = ConstantExpr("squeeze_bias", (bias, tail.weights["w1"], shift))
    return _with_gate(conv, tail, name, Conv2dFoldedSe, {"w1": filters, "b1": bias})


def as_one_pixel(dense: Layer, tail: Layer) -> tuple[Layer, Layer]:
    """Return a product with whole images and the squeeze-and-excitation after it, on images of one pixel.

    The pixels become channels: the tail's mean over pixels moves into its first product, whose matrix is repeated once
    per pixel and divided by their number.
    """
    product, gate = dense.problem, tail.problem
    assert isinstance(product, Gemm) and isinstance(gate, SeTail)
    pixels = gate.h * gate.w
    filters = ConstantExpr("as_filter", (dense.weights["weight"],))
    conv = dataclasses.replace(dense, problem=product.as_conv2d, weights={**dense.weights, "weight": filters})
    share = ConstantExpr("numbers", (), (1 / pixels,))
    weights = {
        "w1": ConstantExpr("scale_rows", (ConstantExpr("tile", (tail.weights["w1"],), (1, pixels)), share)),
        "w2": ConstantExpr("tile", (tail.weights["w2"],), (pixels, 1)),
        "b2": ConstantExpr("tile", (tail.weights["b2"],), (pixels,)),
    }
    flat = dataclasses.replace(gate, h=1, w=1, c=pixels * gate.c)
    return conv, dataclasses.replace(tail, problem=flat, weights={**tail.weights, **weights})


def fuse_projection(gate: Layer, project: Layer, name: str) -> Layer | None:
    """Return a gated convolution and the 1x1 convolution that makes its identity as one layer.

    None unless the result of `project` is added directly after the gate, and `project` has no epilogue, groups, stride
    or padding. If the first works on images of one pixel (see as_one_pixel), the projection becomes one in groups, one
    group per pixel.
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


def _with_gate(
    conv: Layer, tail: Layer, name: str, kind: type[Conv2dSe | Conv2dFoldedSe], changed: dict[str, ConstantSource]
) -> Layer | None:
    """Return both as one layer of the operator `kind`; `changed` are its weights that are not the tail's own.

    None if one layer cannot have the scalars of both.
    """
    product, gate = conv.problem, tail.problem
    assert isinstance(product, Conv2d) and isinstance(gate, SeTail)
    before, after = product.epilogue, gate.epilogue
    names = (*before.names, "gate", *after.names)
    problem = joint_problem(kind, names, **fields_without_epilogue(product), hidden=gate.hidden)
    if problem is None:
        return None
    old = [*((conv, argument) for argument in before.arguments), *((tail, argument) for argument in after.arguments)]
    buffers = {"x": conv.buffers["x"], "y": tail.buffers["y"]}
    weights = {"weight": conv.weights["weight"], **{key: tail.weights[key] for key in ("w1", "b1", "w2", "b2")}}
    weights |= changed
    add_arguments(old, problem.epilogue.arguments, buffers, weights)
    scalars = (*conv.scalars, *tail.scalars)
    return dataclasses.replace(tail, name=name, problem=problem, buffers=buffers, weights=weights, scalars=scalars)


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
