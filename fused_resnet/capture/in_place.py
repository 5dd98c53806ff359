"""Operators that change a tensor in place -> operators that return the changed tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from autotune.core import CaptureError
from fused_resnet.capture.graph_trace import TracedGraph
from fused_resnet.capture.nodes import CASTS, COPIES, name_of, path


def change_nothing_in_place(exported: torch.export.ExportedProgram | TracedGraph) -> bool:
    """Rewrite relu_(x) as relu(x), and its later readers.

    Returns:
        Whether that is possible; it is not where another view of x is read later, or where the other operator gives
        another dtype, as `x > 0` does for gt_(x, 0).
    """
    graph = exported.graph
    signature = exported.graph_signature
    place = {node: i for i, node in enumerate(graph.nodes)}
    roots: dict[fx.Node, fx.Node] = {}
    copies = set()  # nodes with memory of their own, although they have a root
    changed = []
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        shares = schema and schema.returns and schema.returns[0].alias_info
        if first and (shares or name_of(node) in {"getitem", *COPIES, *CASTS}):
            roots[node] = roots.get(first, first)
            if first in copies or not _share_memory(node, first):
                copies.add(node)
        if schema and schema.is_mutable and first and name_of(node) not in COPIES:
            changed.append((node, first))
    for node, target in changed:
        root = roots.get(target, target)
        if root.op == "placeholder" and root.name not in signature.user_inputs and target not in copies:
            key = {**signature.inputs_to_buffers, **signature.inputs_to_parameters}.get(root.name, root.name)
            raise CaptureError(
                f"{path(node) or 'the model'}: forward changes '{key}', and a captured network changes no state: "
                "keep such state outside forward"
            )
        others = [other for other in (root, *roots) if roots.get(other, other) is root and other is not target]
        if any(place[b] < place[node] < place[user] for b in others for user in b.users if b is not node):
            return False
    functions = {node: _function_of(node) for node, _ in changed}
    if None in functions.values():
        return False
    for node, target in changed:
        node.target = functions[node]
        for user in [user for user in target.users if place[user] > place[node]]:
            user.replace_input_with(target, node)
    return True


def _share_memory(node: fx.Node, source: fx.Node) -> bool:
    """Return whether a node that may copy its source does not."""
    if name_of(node).startswith("lift_fresh"):
        return False  # a tensor that forward makes
    one, other = (each.meta.get("val") for each in (node, source))
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return True  # a list of views
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _function_of(node: fx.Node) -> torch._ops.OpOverload | None:
    """Return the operator whose result an in-place operator leaves in its first argument; None if there is none."""
    operator_ = node.target
    assert isinstance(operator_, torch._ops.OpOverload)
    if not operator_._opname.endswith("_"):
        return None
    packet = getattr(getattr(torch.ops, operator_.namespace), operator_._opname.removesuffix("_"), None)
    overloads = [getattr(packet, name) for name in packet.overloads()] if packet else []
    function: torch._ops.OpOverload | None = next((one for one in overloads if _takes(one) == _takes(operator_)), None)
    if function is None:
        return None
    given = fx.map_arg((node.args, node.kwargs), lambda one: _on_meta(one.meta["val"]))
    try:
        made = function(*given[0], **given[1])
    except Exception:  # not every operator runs on the meta device
        return None
    return function if made.dtype == node.meta["val"].dtype else None


def _takes(operator_: torch._ops.OpOverload) -> list[tuple[str, str]]:
    """Return the names and types of an operator's arguments."""
    return [(argument.name, str(argument.type)) for argument in operator_._schema.arguments]


def _on_meta(value: Any) -> Any:
    """Return a tensor without memory in place of a traced one; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
