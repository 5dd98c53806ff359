"""Rewrites of neighbouring layers into others that compute the same, with weights computed from theirs."""

from __future__ import annotations

import dataclasses

from autotune.ir.alternatives.joining import (
    add_arguments,
    fields_of,
    fields_without_epilogue,
    joined_row,
    joint_problem,
)
from autotune.ir.byte_formats import BYTE_FORMATS
from autotune.ir.constant_expr import ConstantExpr, ConstantSource
from autotune.ir.epilogue import Epilogue
from autotune.ir.network import Layer
from autotune.ir.operators import (
    AvgPool2d,
    Cast,
    Concat,
    ConcatConv2d,
    Conv2d,
    Conv2dSkip,
    ExpandDepthwise,
    InvertedResidual,
    Stem,
    StemCast,
)


def fuse_pool_projection(pool: Layer, conv: Layer, name: str) -> Layer:
    """Return an average pool and a 1x1 convolution with stride 1 as one convolution with the pool's window."""
    window, product = pool.problem, conv.problem
    assert isinstance(window, AvgPool2d) and isinstance(product, Conv2d)
    sizes = fields_of(window, "h w r s stride pad")
    weight = ConstantExpr("pool_filter", (conv.weights["weight"],), (window.r, window.s))
    return dataclasses.replace(
        conv,
        name=name,
        problem=dataclasses.replace(product, **sizes),
        buffers={**conv.buffers, "x": pool.buffers["x"]},
        weights={**conv.weights, "weight": weight},
    )


def fuse_expand(expand: Layer, depthwise: Layer, name: str) -> Layer | None:
    """Return a 1x1 convolution and the depthwise convolution after it as one layer, without the tensor between them.

    None if one layer cannot have the scalars of both.
    """
    product, conv = expand.problem, depthwise.problem
    assert isinstance(product, Conv2d) and isinstance(conv, Conv2d)
    sizes = {**fields_of(product, "n h w c k dtype"), **fields_of(conv, "r s stride pad")}
    return joined_row(ExpandDepthwise, (expand, depthwise), name, sizes)


def fuse_inverted(expand: Layer, depthwise: Layer, project: Layer, name: str) -> Layer | None:
    """Return a 1x1, a depthwise and another 1x1 convolution as one layer, without the tensors between them.

    None if one layer cannot have the tensors, scalars and steps of the three.
    """
    product, conv, last = expand.problem, depthwise.problem, project.problem
    assert isinstance(product, Conv2d) and isinstance(conv, Conv2d) and isinstance(last, Conv2d)
    sizes = {
        **fields_of(product, "n h w c dtype"),
        **fields_of(conv, "r s stride pad"),
        "hidden": product.k,
        "k": last.k,
    }
    return joined_row(InvertedResidual, (expand, depthwise, project), name, sizes)


def fuse_cast(stem: Layer, cast: Layer, name: str) -> Layer | None:
    """Return a stem and the cast after it as one layer.

    None if a step of the stem accesses a tensor, which would be in another dtype, or if there are too many scalars.
    """
    first, after = stem.problem, cast.problem
    assert isinstance(first, Stem) and isinstance(after, Cast)
    if first.epilogue.accesses_tensors:
        return None
    names = (*first.epilogue.names, *after.epilogue.names)
    problem = joint_problem(StemCast, names, **fields_without_epilogue(first), result=after.result)
    if problem is None:
        return None
    buffers, weights = {"x": stem.buffers["x"], "y": cast.buffers["y"]}, {"weight": stem.weights["weight"]}
    old = [(layer, one) for layer in (stem, cast) for one in layer.problem.epilogue.arguments]
    add_arguments(old, problem.epilogue.arguments, buffers, weights)
    return Layer(name, problem, buffers, weights, (*stem.scalars, *cast.scalars))


def fuse_skip(conv: Layer, project: Layer, adding: Layer, name: str) -> Layer | None:
    """Return two convolutions whose results are added as one layer, without the result of either.

    None unless both have no step but biases before the sum, and in bytes a scale before these, and `project` is a 1x1
    convolution without padding. In bytes the result is closer to the exact one: the sum is rounded once. A step
    `mul_scalar` behind the sum becomes a factor of scales and bias there.

    Args:
        conv: The first.
        project: The second.
        adding: That of the two whose step `add` adds the other's result; its steps after it are the layer's.
        name: Name of the layer.
    """
    product, skip, whole = conv.problem, project.problem, adding.problem
    assert isinstance(product, Conv2d) and isinstance(skip, Conv2d) and isinstance(whole, Conv2d)
    other = project if adding is conv else conv
    sums = [
        step
        for step in whole.epilogue.steps
        if step.name == "add" and adding.buffers[step.arguments[0].name] == other.buffers["y"]
    ]
    window = (skip.r, skip.s, skip.pad, skip.groups, product.groups)
    if len(sums) != 1 or window != (1, 1, (0, 0), 1, 1) or product.output_shape != skip.output_shape:
        return None
    begins = whole.epilogue.steps.index(sums[0])
    before, after = whole.epilogue.steps[:begins], whole.epilogue.steps[begins + 1 :]
    ahead = [(adding, before), (other, other.problem.epilogue.steps)]
    scales: dict[str, ConstantSource] = {}
    if product.dtype in BYTE_FORMATS:
        if any(not steps or steps[0].name != "scale" for _, steps in ahead):
            return None
        for layer, (first, *_) in ahead:
            scales["scale" if layer is conv else "skip_scale"] = layer.weights[first.arguments[0].name]
        ahead = [(layer, steps[1:]) for layer, steps in ahead]
    biases = [(layer, step) for layer, steps in ahead for step in steps]
    if any(step.name != "bias" for _, step in biases):
        return None
    scalars, factor = adding.scalars, tuple[ConstantSource, ...]()
    if scales and after and after[0].name == "mul_scalar":  # the conversion to the output's scale
        factor, scalars, after = scalars[:1], scalars[1:], after[1:]
        scales = {name: ConstantExpr("product", (scale, *factor)) for name, scale in scales.items()}
    fields = fields_without_epilogue(product)
    chain = Epilogue((*("bias" for _ in biases[:1]), *(step.name for step in after)))
    problem = Conv2dSkip(**fields, skip_h=skip.h, skip_w=skip.w, skip_c=skip.c, skip_stride=skip.stride, epilogue=chain)
    buffers = {"x": conv.buffers["x"], "skip": project.buffers["x"], "y": adding.buffers["y"]}
    weights = {"weight": conv.weights["weight"], "projection": project.weights["weight"], **scales}
    arguments = list(problem.epilogue.arguments)
    if biases:
        values = [layer.weights[step.arguments[0].name] for layer, step in biases]
        bias = values[0] if len(values) == 1 else ConstantExpr("sum", tuple(values))
        weights[arguments.pop(0).name] = ConstantExpr("product", (bias, *factor)) if factor else bias
    kept = [(adding, argument) for step in after for argument in step.arguments]
    add_arguments(kept, arguments, buffers, weights)
    return Layer(name, problem, buffers, weights, scalars)


def fuse_concat(concat: Layer, conv: Layer, name: str) -> Layer | None:
    """Return a 1x1 convolution and the concatenation before it as one layer, without the tensor between them.

    The steps of the concatenation become steps before the convolution. None if one layer cannot have all the tensors,
    scalars and steps of the two.
    """
    made, product = concat.problem, conv.problem
    assert isinstance(made, Concat) and isinstance(product, Conv2d)
    sizes = fields_of(product, "n h w k dtype")
    names = (*made.epilogue.names, "conv", *product.epilogue.names)
    problem = joint_problem(ConcatConv2d, names, **sizes, pieces=made.pieces)
    if problem is None:
        return None
    buffers = {f"x{i}": concat.buffers[f"x{i}"] for i in range(len(made.pieces))} | {"y": conv.buffers["y"]}
    weights = {"weight": conv.weights["weight"]}
    old = [(concat, argument) for argument in made.epilogue.arguments]
    old += [(conv, argument) for argument in product.epilogue.arguments]
    add_arguments(old, problem.epilogue.arguments, buffers, weights)
    return Layer(name, problem, buffers, weights, (*concat.scalars, *conv.scalars))
