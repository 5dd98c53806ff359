"""Reads the nodes of a graph of aten operators: names, arguments, paths of submodules, and which nodes are used."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

COPIES = {"clone", "contiguous", "alias", "detach", "detach_", "lift_fresh_copy", "lift_fresh"}
"""Operators whose result has the elements of their argument."""
CASTS = {"to", "_to_copy", "type_as"}
"""Operators whose result has them, too, where neither dtype nor device changes."""

_STATISTICS = ("running_mean", "running_var")
"""Arguments of normalizations that hold the statistics of former batches."""
_OF_BATCH = ("training", "train", "use_input_stats")
"""Arguments of operators that are True if they use, and update, the statistics of the batch."""


def path(node: fx.Node) -> str:
    """Return the path of the innermost submodule that a node comes from; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or {"": ("", None)}
    return str(list(stack.values())[-1][0])


def buffer(node: fx.Node) -> str:
    """Return the name of the buffer of a node's result, which differs from those of the caller's tensors."""
    return f"%{node.name}"


def name_of(node: fx.Node) -> str:
    """Return an operator's name without its overload, such as "conv2d"; empty for a node without an operator.

    That of `x.view(dtype)` is "view_dtype", because it has little in common with `x.view(shape)`.
    """
    if node.target is torch.ops.aten.view.dtype:
        return "view_dtype"
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._opname if node.target.namespace == "aten" else str(node.target)
    return "getitem" if node.target is operator.getitem else ""


def arguments(node: fx.Node) -> dict[str, Any]:
    """Return all arguments of an operator by the names of its schema, with the defaults of those not given."""
    assert isinstance(node.target, torch._ops.OpOverload)
    formal = node.target._schema.arguments
    given = dict(zip((argument.name for argument in formal), node.args, strict=False))
    return {argument.name: argument.default_value for argument in formal} | given | dict(node.kwargs)


def memory(node: fx.Node) -> set[int]:
    """Return the memory of a node's tensors, as numbers of their storages: nodes that share one are views of it.

    A tensor that forward makes from numbers has none before lift_fresh, with which every call copies it.
    """
    if node.op == "placeholder" and node.users and all(name_of(user).startswith("lift_fresh") for user in node.users):
        return set()
    tensors = [one for one in tree_leaves(node.meta.get("val")) if isinstance(one, torch.Tensor)]
    return {one.untyped_storage()._cdata for one in tensors if one.layout is torch.strided}


def written(node: fx.Node) -> list[fx.Node]:
    """Return the nodes whose elements an operator changes, also in lists, in `out=` and by keyword."""
    if not isinstance(node.target, torch._ops.OpOverload) or name_of(node) in COPIES:
        return []
    given = arguments(node)
    names = [one.name for one in node.target._schema.arguments if one.alias_info and one.alias_info.is_write]
    if any(given.get(name) is True for name in _OF_BATCH):
        names += _STATISTICS  # schemas do not say that these are updated
    found: list[fx.Node] = []
    fx.map_arg([given.get(name) for name in names], found.append)
    return found


def live_nodes(graph: fx.Graph, results: Sequence[fx.Node]) -> set[fx.Node]:
    """Return all nodes on which the results depend, and the node that returns them, which reads them."""
    found, left = {node for node in graph.nodes if node.op == "output"}, [*results]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found
