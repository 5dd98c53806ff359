"""Computes gradients of ReLUs by kernels that also add up over each image, in a graph of aten operators.

The gradients of a gate, a scale or a scalar behind or in front of a ReLU are sums over pixels. What they add up are
polynomials of the gradients around the ReLU and of a tensor that these are multiplied by. So the sums of four monomials
over each image and channel give all of them, and no other kernel reads the tensors for a sum.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from autotune.ir.operators import SUMS_OF_FACTOR, SUMS_OF_GRADIENT, SUMS_OF_MASKED, SUMS_OF_PRODUCT, ReluGradientSums
from fused_resnet.torch_arguments import pair
from fused_resnet.training.convolution_passes.passes import dtype_name
from fused_resnet.training.graph_rewrite.kernel_calls import want_channels_last
from fused_resnet.training.graph_rewrite.nodes import call, erase, is_images, is_like, value
from fused_resnet.training.graph_rewrite.pixel_polynomials import (
    ADD,
    CONVERSIONS,
    CONVERT,
    DIVIDE,
    MULTIPLY,
    Monomial,
    Polynomial,
    combined,
    monomial,
    polynomial,
)
from fused_resnet.training.graph_rewrite.relu_fusion import MASKS, relu_arguments
from fused_resnet.training.kernels.bound_problem import can_solve
from fused_resnet.training.kernels.operator import SOLVE_ALL

_ATEN = torch.ops.aten
_SUM, _SELECT = _ATEN.sum.dim_IntList, _ATEN.select.int
_SAME = (_ATEN.detach.default, _ATEN.alias.default)
"""Operators that return their input: torch saves a ReLU's result by the second one from 2.14 on."""
_POOL_GRADIENT = _ATEN.avg_pool2d_backward.default


@dataclass(frozen=True)
class ReluGradient:
    """The gradient of a ReLU in a graph, and the sums that follow from those of its kernel.

    Attributes:
        node: The call that computes it.
        problem: The problem of both.
        operands: The inputs of the problem; the second one is a mask, or the ReLU's result.
        before: The node in front of which the kernel can stand; a sum of the gradient may precede `node`.
        sums: Calls of sum, and what they add up.
        rows: Monomial -> the row of the problem's sums that is its own.
    """

    node: fx.Node
    problem: ReluGradientSums
    operands: tuple[fx.Node, ...]
    before: fx.Node
    sums: Mapping[fx.Node, Polynomial]
    rows: Mapping[Monomial, int]


def relu_gradients(graph: fx.Graph) -> Iterator[ReluGradient]:
    """Yield the gradients of ReLUs in a graph whose kernels can also compute what sums need."""
    for node in graph.nodes:
        if found := relu_gradient(node):
            yield found


def relu_gradient(node: fx.Node) -> ReluGradient | None:
    """Return the gradient of a ReLU that a node computes, with sums; None if it is none, or if there are no sums."""
    activity, gradient = _arguments(node)
    if activity is None or dtype_name(value(node)) is None or not is_like(value(gradient), value(node)):
        return None
    known: dict[fx.Node, Polynomial | None] = {one: {(one,): [()]} for one in (gradient, node)}
    added_up = {one: polynomial(one.args[0], known, value(node)) for one in _sums_behind(gradient, node)}
    usable = {one: found for one, found in added_up.items() if found}
    factor = next((one for found in usable.values() for one in _factors(gradient, node, found)), None)
    rows = _rows(gradient, node, factor)
    sums = {one: found for one, found in usable.items() if _is_known(found, rows, factor)}
    if not sums:
        return None
    dy, pooled, (pool, stride, pad) = _pool(gradient, {node, *sums}) or (gradient, None, (0, 1, 0))
    operands = tuple(one for one in (dy, activity, pooled, factor) if one)
    at = {one: i for i, one in enumerate(node.graph.nodes)}
    before: fx.Node = max(operands, key=at.__getitem__).next
    while before.op == "placeholder":
        before = before.next
    if at[before] > min(map(at.__getitem__, sums)):
        return None
    n, c, h, w = value(node).shape
    problem = ReluGradientSums(
        n=n, h=h, w=w, c=c, product=int(factor is not None), pool=pool, stride=stride, pad=pad,
        dtype=str(dtype_name(value(node))),
    )  # fmt: skip
    return ReluGradient(node, problem, operands, before, sums, rows)


def replace_gradient(found: ReluGradient, database: str) -> None:
    """Replace the gradient of a ReLU and its sums, if the database has a kernel for it."""
    node, graph, problem = found.node, found.node.graph, found.problem
    if not can_solve(problem, database, value(node).device):
        return
    dy, activity, *more = found.operands
    with graph.inserting_before(found.before):
        is_mask = value(activity).dtype == torch.bool
        inactive = activity if is_mask else call(graph, _ATEN.le.Scalar, (activity, 0))
        solved = call(graph, SOLVE_ALL, ([dy, inactive, *more], str(problem), database, "", []))
        want_channels_last(solved)
        y, sums = (call(graph, operator.getitem, (solved, i)) for i in range(2))
    for one, added_up in found.sums.items():
        with graph.inserting_before(one):
            rows = {name: call(graph, _SELECT, (sums, 1, row)) for name, row in found.rows.items() if name in added_up}
            total = combined(graph, added_up, {**rows, (): problem.h * problem.w})
            if dims := sorted(_dims(one) & {0, 1}):
                total = call(graph, _SUM, (total, dims))
            total = call(graph, _ATEN.reshape.default, (total, list(value(one).shape)))
            one.replace_all_uses_with(call(graph, CONVERT, (total, value(one).dtype)))
    node.replace_all_uses_with(y)
    for one in (*found.sums, node):
        erase(one)


def _arguments(node: fx.Node) -> tuple[Any, Any]:
    """Return what tells where a ReLU was active, and the gradient of its result; None for another operator.

    A mask that the graph computes is none: no kernel would write it to memory otherwise.
    """
    activity, gradient = relu_arguments(node) if node.target in MASKS else (None, None)
    if activity is None or not is_images(value(node)) or value(activity).shape != value(node).shape:
        return None, None
    while activity.target in _SAME:
        activity = activity.args[0]
    is_computed = value(activity).dtype == torch.bool and activity.op != "placeholder"
    return (None, None) if is_computed else (activity, gradient)


def _rows(gradient: fx.Node, masked: fx.Node, factor: fx.Node | None) -> dict[Monomial, int]:
    """Return the rows of ReluGradientSums by the monomials that they add up."""
    found: dict[Monomial, int] = {(gradient,): SUMS_OF_GRADIENT, (masked,): SUMS_OF_MASKED}
    if factor:
        found |= {monomial(masked, factor): SUMS_OF_PRODUCT, (factor,): SUMS_OF_FACTOR}
    return found


def _factors(gradient: fx.Node, masked: fx.Node, added_up: Polynomial) -> Iterator[fx.Node]:
    """Yield the tensors that make a product of the masked gradient in a sum known."""
    for factors in added_up:
        for one in factors:
            if monomial(masked, one) == factors and _is_known(added_up, _rows(gradient, masked, one), one):
                yield one


def _is_known(added_up: Polynomial, rows: Mapping[Monomial, int], factor: fx.Node | None) -> bool:
    """Return whether the sum of a polynomial of a gradient follows from those of some monomials."""
    return added_up.keys() <= {(), *rows} and bool(added_up.keys() - {(), (factor,)})


def _sums_behind(*nodes: fx.Node) -> list[fx.Node]:
    """Return the calls of sum over at least all pixels that read what is computed from nodes, in the graph's order."""
    through = (MULTIPLY, ADD, *DIVIDE, *CONVERSIONS)
    behind, waiting = set(nodes), list(nodes)
    while waiting:
        new = {user for user in waiting.pop().users if user not in behind and user.target in (_SUM, *through)}
        behind |= new
        waiting += [one for one in new if one.target in through]
    return [one for one in nodes[0].graph.nodes if one in behind and one.target == _SUM and _adds_pixels(one)]


def _dims(node: fx.Node) -> set[int]:
    """Return the dimensions over which a call of sum adds up images; all if it names none."""
    dims: Any = node.args[1] if len(node.args) > 1 else None
    return {dim % 4 for dim in dims or range(4)}


def _adds_pixels(node: fx.Node) -> bool:
    return value(node.args[0]).dim() == 4 and _dims(node) >= {2, 3} and not node.kwargs


def _pool(gradient: fx.Node, readers: set[fx.Node]) -> tuple[fx.Node, fx.Node, tuple[int, int, int]] | None:
    """Return the other gradient, that of an average pool's output, and its window, stride and padding.

    It is None if there is no pool.

    Args:
        gradient: A sum of two gradients, if one is that of a pool.
        readers: What may read it, and alone does.
    """
    if gradient.target != ADD or gradient.kwargs or not readers >= set(gradient.users):
        return None
    for one, other in (gradient.args, gradient.args[::-1]):
        if isinstance(one, fx.Node) and one.target == _POOL_GRADIENT and len(one.users) == 1:
            arguments: Any = one.args
            pooled, x, window, stride, pad, ceil_mode, counts_padding, divisor = arguments
            sizes = [pair(given) for given in (window, stride or window, pad)]
            is_square = all(down == right for down, right in sizes)
            is_plain = is_square and not ceil_mode and counts_padding and divisor is None
            if is_plain and isinstance(other, fx.Node) and is_like(value(other), value(x)):
                (side, _), (step, _), (border, _) = sizes
                return other, pooled, (side, step, border)
    return None
