"""Rewrites of neighbouring layers into others that compute the same, with weights computed from theirs."""

from __future__ import annotations

from autotune.ir.alternatives.joining import (
    add_arguments,
    fields_of,
    fields_without_epilogue,
    joined_row,
    joint_problem,
)
from autotune.ir.network import Layer
from autotune.ir.operators import (
    Cast,
    Concat,
    ConcatConv2d,
    Conv2d,
    ExpandDepthwise,
    InvertedResidual,
    Stem,
    StemCast,
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
