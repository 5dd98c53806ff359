"""Rewrites of neighbouring layers into others that compute the same, with weights computed from theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from autotune.core import ProblemError
from autotune.ir.byte_formats import BYTE_FORMATS
from autotune.ir.constant_expr import ConstantExpr, ConstantSource
from autotune.ir.epilogue import Argument, Epilogue
from autotune.ir.network import Layer
from autotune.ir.operators import (
    AvgPool2d,
    Cast,
    Concat,
    ConcatConv2d,
    Conv2d,
    Conv2dPair,
    Conv2dSkip,
    ExpandDepthwise,
    Gemm,
    InvertedResidual,
    PointwisePair,
    Stem,
    StemCast,
)
from autotune.ir.problem import Problem

P = TypeVar("P", bound=Problem)


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
    return _in_a_row(ExpandDepthwise, (expand, depthwise), name, sizes)


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
    return _in_a_row(InvertedResidual, (expand, depthwise, project), name, sizes)


def fuse_convolutions(first: Layer, second: Layer, name: str) -> Layer | None:
    """Return two convolutions, the second of which reads the first one's result, as one layer without that tensor.

    None if one layer cannot have the tensors, scalars and steps of both. Neither has groups or a dilation.
    """
    product, conv = first.problem, second.problem
    assert isinstance(product, Conv2d) and isinstance(conv, Conv2d)
    sizes = {**fields_of(product, "n h w c dtype"), **fields_of(conv, "k r s stride pad"), "hidden": product.k}
    window = {f"first_{field}": value for field, value in fields_of(product, "r s stride pad").items()}
    return _in_a_row(Conv2dPair, (first, second), name, sizes | window)


def fields_of(problem: Problem, names: str) -> dict[str, Any]:
    """Return fields of a problem by their names, which are separated by spaces."""
    return {name: getattr(problem, name) for name in names.split()}


def _in_a_row(kind: type[Problem], layers: Sequence[Layer], name: str, sizes: Mapping[str, Any]) -> Layer | None:
    """Return convolutions, each of which alone reads the result of the one before it, as one layer.

    In the joint chain a step `conv` stands in front of the steps of each but the first. None if one layer cannot have
    the tensors, scalars and steps of all.

    Args:
        kind: The joint problem, whose weights are weight1, weight2, ... in the order of the layers.
        layers: The convolutions.
        name: Name of the layer.
        sizes: The fields of the joint problem but for the epilogue.
    """
    first, *others = layers
    chain = first.problem.epilogue.names
    for layer in others:
        chain = (*chain, "conv", *layer.problem.epilogue.names)
    problem = joint_problem(kind, chain, **sizes)
    if problem is None:
        return None
    buffers = {"x": first.buffers["x"], "y": layers[-1].buffers["y"]}
    weights = {f"weight{i}": layer.weights["weight"] for i, layer in enumerate(layers, 1)}
    old = [(layer, argument) for layer in layers for argument in layer.problem.epilogue.arguments]
    add_arguments(old, problem.epilogue.arguments, buffers, weights)
    return Layer(name, problem, buffers, weights, tuple(scalar for layer in layers for scalar in layer.scalars))


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


def fuse_pair(first: Layer, second: Layer, name: str, keep: bool) -> Layer | None:
    """Return two 1x1 convolutions or linear layers, the second of which reads the first one's result, as one layer.

    None if one layer cannot have all the tensors, scalars and steps of the two.

    Args:
        first: The first.
        second: The second.
        name: Name of the layer.
        keep: Whether it also writes the tensor between them, for other readers.
    """
    product, other = _as_convolution(first), _as_convolution(second)
    old = [(first, argument) for argument in product.epilogue.arguments]
    chain = product.epilogue.names
    if keep:
        (written,) = Epilogue(("store",)).arguments
        old.append((dataclasses.replace(first, buffers={written.name: first.buffers["y"]}), written))
        chain = (*chain, "store")
    old += [(second, argument) for argument in other.epilogue.arguments]
    sizes = fields_of(product, "n h w c dtype")
    problem = joint_problem(
        PointwisePair, (*chain, "conv", *other.epilogue.names), **sizes, hidden=product.k, k=other.k
    )
    if problem is None:
        return None
    buffers = {"x": first.buffers["x"], "y": second.buffers["y"]}
    weights: dict[str, ConstantSource] = {
        f"weight{i}": ConstantExpr("as_filter", (layer.weights["weight"],))
        if isinstance(layer.problem, Gemm)
        else layer.weights["weight"]
        for i, layer in enumerate((first, second), 1)
    }
    add_arguments(old, problem.epilogue.arguments, buffers, weights)
    return Layer(name, problem, buffers, weights, (*first.scalars, *second.scalars))


def _as_convolution(layer: Layer) -> Conv2d:
    """Return a 1x1 convolution, or that which computes the same as a linear layer."""
    problem = layer.problem
    assert isinstance(problem, Conv2d | Gemm)
    return problem.as_conv2d if isinstance(problem, Gemm) else problem


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


def joint_problem(kind: type[P], names: tuple[str, ...], **fields: Any) -> P | None:
    """Return a problem with a joint chain; None if one layer cannot have all its tensors, scalars and steps."""
    try:
        return kind(**fields, epilogue=Epilogue(names))
    except ProblemError:
        return None


def fields_without_epilogue(problem: Problem) -> dict[str, Any]:
    """Return all fields of a problem but its epilogue, by name."""
    return {f.name: getattr(problem, f.name) for f in dataclasses.fields(problem) if f.name != "epilogue"}


def add_arguments(
    old: Sequence[tuple[Layer, Argument]],
    new: Sequence[Argument],
    buffers: dict[str, str],
    weights: dict[str, ConstantSource],
) -> None:
    """Add the tensors of layers' steps to `buffers` and `weights`, under their names in the joint chain.

    Args:
        old: The arguments of the chain, in order, each with the layer that it comes from.
        new: The same arguments in the joint chain, in which they are numbered anew.
        buffers: Activations of the joint layer, by operand.
        weights: Constants of the joint layer, by operand.
    """
    for (layer, argument), renamed in zip(old, new, strict=True):
        if argument.kind == "vector":
            weights[renamed.name] = layer.weights[argument.name]
        elif argument.kind != "scalar":
            buffers[renamed.name] = layer.buffers[argument.name]
