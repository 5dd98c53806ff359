"""Reads the nodes of a graph of aten operators: names of operators, their arguments, and paths of submodules."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

COPIES = {"clone", "contiguous", "alias", "detach", "detach_", "lift_fresh_copy", "lift_fresh"}
"""Operators whose result has the elements of their argument."""
CASTS = {"to", "_to_copy", "type_as"}
"""Operators whose result has them, too, where neither dtype nor device changes."""


def path(node: fx.Node) -> str:
    """Return the path of the innermost submodule that a node comes from; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or {"": ("", None)}
    return str(list(stack.values())[-1][0])


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
