"""Reads nodes of a graph of aten operators as polynomials of images, whose coefficients are the same for all pixels.

Layers that treat all pixels of an image alike, such as a gate, a scale or a scalar, add and multiply by such
coefficients. The sum of a polynomial over the pixels follows from those of its monomials.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from fused_resnet.training.convolution_passes.passes import FORWARD
from fused_resnet.training.graph_rewrite.nodes import call, is_like, value
from fused_resnet.training.kernels.operator import SOLVE

_ATEN = torch.ops.aten
ADD, MULTIPLY, EXPAND = _ATEN.add.Tensor, _ATEN.mul.Tensor, _ATEN.expand.default
DIVIDE = (_ATEN.div.Scalar, _ATEN.div.Tensor)
CONVERT = torch.ops.prims.convert_element_type.default
CONVERSIONS = (CONVERT, _ATEN._to_copy.default)
_IN_MEMORY = (operator.getitem, FORWARD, SOLVE)
"""Operators whose results are in memory in any case."""

Monomial = tuple[fx.Node, ...]
"""A product of images (n, c, h, w); () is 1."""
Term = tuple[Any, ...]
"""Factors of a coefficient: numbers, and nodes that are broadcast over the pixels."""
Polynomial = Mapping[Monomial, Sequence[Term]]
"""Monomial -> terms, whose sum is its coefficient."""


def monomial(*factors: fx.Node) -> Monomial:
    """Return the product of images."""
    return tuple(sorted(factors, key=lambda one: one.name))


def polynomial(argument: Any, known: dict[fx.Node, Polynomial | None], like: torch.Tensor) -> Polynomial | None:
    """Return what an argument of an operator is as a polynomial; None if it is not computed as one.

    Args:
        argument: A node or a number.
        known: The polynomials of other nodes; it grows.
        like: A tensor with the shape and dtype of the images. Those in memory are what polynomials are made of.
    """
    if not isinstance(argument, fx.Node):
        return {(): [(argument,)]}
    if argument not in known:
        known[argument] = _computed(argument, known, like)
    return known[argument]


def _computed(node: fx.Node, known: dict[fx.Node, Polynomial | None], like: torch.Tensor) -> Polynomial | None:
    arguments: Any = node.args

    def of(argument: Any) -> Polynomial | None:
        return polynomial(argument, known, like)

    if _is_broadcast(value(node)):
        return {(): [(node,)]}
    if node.target in (EXPAND, *CONVERSIONS):
        return of(arguments[0])
    if node.target == MULTIPLY:
        return _product(*map(of, arguments))
    if node.target == ADD and not node.kwargs:
        return _sum(*map(of, arguments))
    if node.target in DIVIDE and isinstance(arguments[1], (int, float)) and not node.kwargs:
        return _product(of(arguments[0]), {(): [(1 / arguments[1],)]})
    is_in_memory = node.op == "placeholder" or node.target in _IN_MEMORY
    return {(node,): [()]} if is_in_memory and is_like(value(node), like) else None


def _is_broadcast(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is the same for all pixels of images (n, c, h, w)."""
    return tensor.numel() == 1 or (tensor.dim() == 4 and tuple(tensor.shape[2:]) == (1, 1))


def _product(one: Polynomial | None, other: Polynomial | None) -> Polynomial | None:
    if one is None or other is None:
        return None
    found: dict[Monomial, list[Term]] = {}
    for factors, terms in one.items():
        for others, more in other.items():
            found.setdefault(monomial(*factors, *others), []).extend((*a, *b) for a in terms for b in more)
    return found


def _sum(one: Polynomial | None, other: Polynomial | None) -> Polynomial | None:
    if one is None or other is None:
        return None
    return {name: [*one.get(name, ()), *other.get(name, ())] for name in {**one, **other}}


def combined(graph: fx.Graph, found: Polynomial, images: Mapping[Monomial, Any]) -> fx.Node:
    """Add the operators that compute a polynomial of what each monomial is for an image and channel, in float32.

    Args:
        graph: The graph.
        found: The polynomial, which is no constant.
        images: Monomial -> a node (n, c) in float32; () -> a number.
    """
    monomials = sorted(found, key=len, reverse=True)  # numbers come last
    first, *others = [_times(graph, images[one], term) for one in monomials for term in found[one]]
    for other in others:
        first = call(graph, ADD, (first, other))
    total: fx.Node = first
    return total


def _times(graph: fx.Graph, start: Any, term: Term) -> Any:
    """Add the operators that multiply a node (n, c) or a number by the factors of a term."""
    product = start
    for one in sorted(term, key=lambda factor: isinstance(factor, fx.Node)):  # numbers come first
        factor = one
        if isinstance(one, fx.Node):
            shape = [1, 1] if value(one).numel() == 1 else list(value(one).shape[:2])
            rows = call(graph, _ATEN.reshape.default, (one, shape))
            factor = call(graph, CONVERT, (rows, torch.float32))
        if isinstance(product, fx.Node) or isinstance(factor, fx.Node):
            # A node is the first argument of an operator.
            given = (product, factor) if isinstance(product, fx.Node) else (factor, product)
            product = call(graph, MULTIPLY, given)
        else:
            product *= factor
    return product
