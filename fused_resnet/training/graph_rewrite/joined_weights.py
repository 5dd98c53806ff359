"""Joins what is done to each weight and to each gradient of a weight in operators for all of them.

Autocast converts weights to another dtype, and their gradients back; kernels read packed weights. A kernel of a
microsecond or two would do that for each of them, which is hundreds of kernels in a network.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from fused_resnet.training.graph_rewrite.channels_last import FORCE_STRIDE_ORDER
from fused_resnet.training.graph_rewrite.nodes import call, value
from fused_resnet.training.kernels.operator import LIBRARY, SOLVE, SOLVE_ALL, TAGS

LIBRARY.define("convert_all(Tensor[] tensors, ScalarType dtype) -> Tensor[]", tags=TAGS)
CONVERT_ALL: Any = torch.ops.fused_resnet.convert_all.default
"""(tensors, dtype) -> the same in another dtype, with the same strides, in a launch for about a hundred tensors."""

_ATEN = torch.ops.aten
_REVERSE = torch.ops.prims.rev.default
_CONVERT = torch.ops.prims.convert_element_type.default
_COMPUTED_APART = (SOLVE, operator.getitem, _ATEN.mm.default, _ATEN.convolution_backward.default)
"""Operators that compute gradients of weights. A compiler does not fuse a conversion with them."""
_VIEWS = (_ATEN.permute.default, _ATEN.view.default, _ATEN.reshape.default, _ATEN.constant_pad_nd.default, _REVERSE)
"""Operators of a packing in front of its copy. A compiler fuses them with the copy."""
_READ_APART = (
    *(SOLVE, SOLVE_ALL, _ATEN.convolution.default, _ATEN.convolution_backward.default, _ATEN.mm.default),
    *(_ATEN.addmm.default, FORCE_STRIDE_ORDER, *_VIEWS),
)
"""Operators that read converted weights: kernels, and the operators of a packing."""


def join_conversions(graph: fx.Graph) -> None:
    """Join conversions of a graph's inputs before all other operators, and those of its results behind them."""
    groups: dict[tuple[bool, torch.dtype, torch.dtype, torch.device], list[fx.Node]] = {}
    for node in graph.nodes:
        if node.target is _CONVERT and _is_joined(node):
            x = value(node.args[0])
            of_input = node.args[0].op == "placeholder"
            groups.setdefault((of_input, x.dtype, value(node).dtype, x.device), []).append(node)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    for (of_input, _, dtype, _), nodes in groups.items():
        if len(nodes) > 1:
            first = next(node for node in graph.nodes if node.op != "placeholder")
            with graph.inserting_before(first if of_input else output):
                _join(graph, nodes, dtype)
            for node in nodes:
                graph.erase_node(node)


def join_packings(graph: fx.Graph) -> None:
    """Pack all weights that kernels read before all other operators, and behind their conversions."""
    found: dict[tuple[torch.dtype, torch.device], list[fx.Node]] = {}
    for node in graph.nodes:
        if node.target in (SOLVE, SOLVE_ALL):
            for operand in node.args[0]:
                if operand.target == _ATEN.clone.default and _is_of_input(operand.args[0]):
                    group = found.setdefault((value(operand).dtype, value(operand).device), [])
                    group += [operand] * (operand not in group)
    for nodes in found.values():
        if len(nodes) > 1:
            _pack_together(graph, nodes)


def _pack_together(graph: fx.Graph, nodes: Sequence[fx.Node]) -> None:
    """Replace copies by one operator. Inductor makes few kernels of a product of many tensors with 1."""
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder" and not _is_early(node))):
        copies: dict[fx.Node, fx.Node] = {}
        views = [_moved(graph, node.args[0], copies) for node in nodes]
        joined = call(graph, _ATEN._foreach_mul.Scalar, (views, 1))
        for i, node in enumerate(nodes):
            one = call(graph, operator.getitem, (joined, i))
            one.meta["val"] = value(node)
            node.replace_all_uses_with(one)
    for node in nodes:
        graph.erase_node(node)


def _is_of_input(node: Any) -> bool:
    """Return whether a tensor is a view of an input, or of a converted one."""
    while node.target in _VIEWS:
        node = node.args[0]
    return node.op == "placeholder" or _is_early(node)


def _is_early(node: fx.Node) -> bool:
    """Return whether a node is a conversion of inputs."""
    called: Any = node.args[0] if node.target is operator.getitem else node
    return called.target is CONVERT_ALL and all(one.op == "placeholder" for one in called.args[0])


def _moved(graph: fx.Graph, node: Any, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """Return a copy of a view, and of those that it is a view of, where nodes are inserted."""
    if node.target not in _VIEWS:
        moved: fx.Node = node
        return moved
    if node not in copies:
        of = _moved(graph, node.args[0], copies)
        copies[node] = graph.node_copy(node, lambda _: of)
    return copies[node]


def _is_joined(node: fx.Node) -> bool:
    """Return whether a node converts a matrix or weight between floating-point dtypes, and a kernel alone does it."""
    x, converted = value(node.args[0]), value(node)
    if x.dim() < 2 or not (x.is_floating_point() and converted.is_floating_point()) or _order(x) != _order(converted):
        return False
    source: Any = node.args[0]
    if source.op == "placeholder":
        return all(user.op == "output" or user.target in _READ_APART for user in node.users)
    return source.target in _COMPUTED_APART and all(user.op == "output" for user in node.users)


def _order(tensor: torch.Tensor) -> list[int]:
    """Return the strides that say where elements lie: those of axes of length 1 do not."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]


def _join(graph: fx.Graph, nodes: Sequence[fx.Node], dtype: torch.dtype) -> None:
    joined = call(graph, CONVERT_ALL, ([node.args[0] for node in nodes], dtype))
    joined.meta["eager_input_vals"] = (fx.node.map_arg(joined.args, value), {})
    for i, node in enumerate(nodes):
        node.replace_all_uses_with(call(graph, operator.getitem, (joined, i)))


def _convert_all(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    converted = _empty_like(tensors, dtype)
    torch._foreach_copy_(converted, list(tensors))
    return converted


def _empty_like(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.empty_like(one, dtype=dtype) for one in tensors]


LIBRARY.impl("convert_all", _convert_all, "CompositeExplicitAutograd")
torch.library.register_fake("fused_resnet::convert_all", _empty_like, lib=LIBRARY)
