"""Several layers as one, whose chain of steps has the steps of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from autotune.core import ProblemError
from autotune.ir.constant_expr import ConstantExpr, ConstantSource
from autotune.ir.epilogue import Argument, Epilogue
from autotune.ir.network import Layer
from autotune.ir.operators import Gemm
from autotune.ir.problem import Problem

P = TypeVar("P", bound=Problem)

VECTOR = 8
"""Channels that kernels read and store at a time."""


def joined(
    problem: Problem | None,
    layers: Sequence[Layer],
    name: str,
    buffers: dict[str, str],
    weights: dict[str, ConstantSource],
) -> Layer | None:
    """Return layers as one, with the scalars and the steps of all in their order; None if `problem` is.

    Args:
        problem: The joint problem, as joint_problem returns it.
        layers: The layers.
        name: Name of the joint layer.
        buffers: Its activations by operand, without those of the steps, which are added.
        weights: Its constants likewise.
    """
    if problem is None:
        return None
    old = [(layer, argument) for layer in layers for argument in layer.problem.epilogue.arguments]
    add_arguments(old, problem.epilogue.arguments, buffers, weights)
    return Layer(name, problem, buffers, weights, tuple(scalar for layer in layers for scalar in layer.scalars))


def joined_row(kind: type[Problem], layers: Sequence[Layer], name: str, sizes: Mapping[str, Any]) -> Layer | None:
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
    weights = {f"weight{i}": layer.weights["weight"] for i, layer in enumerate(layers, 1)}
    buffers = {"x": first.buffers["x"], "y": layers[-1].buffers["y"]}
    return joined(joint_problem(kind, chain, **sizes), layers, name, buffers, weights)


def joint_problem(kind: type[P], names: tuple[str, ...], **fields: Any) -> P | None:
    """Return a problem with a joint chain; None if one layer cannot have all its tensors, scalars and steps."""
    try:
        return kind(**fields, epilogue=Epilogue(names))
    except ProblemError:
        return None


def as_convolution(product: Layer) -> Layer:
    """Return a linear layer as the 1x1 convolution that computes the same; a convolution as it is."""
    if not isinstance(product.problem, Gemm):
        return product
    weight = ConstantExpr("as_filter", (product.weights["weight"],))
    return dataclasses.replace(
        product, problem=product.problem.as_conv2d, weights={**product.weights, "weight": weight}
    )


def fields_of(problem: Problem, names: str) -> dict[str, Any]:
    """Return fields of a problem by their names, which are separated by spaces."""
    return {name: getattr(problem, name) for name in names.split()}


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
