"""Replaces torch's convolutions in a graph of aten operators by the tuned kernels of their problems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from fused_resnet.training.operator import SOLVE
from fused_resnet.training.passes import BY_BIAS, FORWARD, Pass, passes
from fused_resnet.training.winners import Winners

_FILES = tuple(str(path) for path in sorted(Path(__file__).parent.glob("*.py")))


class Rewrite(CustomGraphPass):
    """Rewrites the graphs of one compilation; Inductor calls it for the forward and for the backward pass.

    Args:
        winners: The kernels.
    """

    def __init__(self, winners: Winners) -> None:
        self._winners = winners

    def uuid(self) -> Any:
        """Return what the rewritten graphs depend on beside the graphs; None if that has no text."""
        stamp = self._winners.stamp()
        return None if stamp is None else (get_hash_for_files(_FILES), stamp)

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a graph in place."""
        for node in list(graph.nodes):
            solved = [one for one in passes(node.target, node.args, _value) if self._solves(one)]
            if solved and node.target == FORWARD:
                _replace_forward(node, solved[0], self._winners.database)
            elif solved:
                _replace_backward(node, solved, self._winners.database)

    def _solves(self, one: Pass) -> bool:
        return self._winners.solves(one.problem, _value(one.operands[0]).device)


def _replace_forward(node: fx.Node, one: Pass, database: str) -> None:
    graph, bias = node.graph, node.args[2]
    with graph.inserting_before(node):
        y = _call(graph, SOLVE, (list(one.operands), str(one.problem), database))
        if isinstance(bias, fx.Node):
            by_channel = _call(graph, torch.ops.aten.view.default, (bias, [1, -1, 1, 1]))
            y = _call(graph, torch.ops.aten.add.Tensor, (y, by_channel))
    node.replace_all_uses_with(y)
    graph.erase_node(node)


def _replace_backward(node: fx.Node, solved: Sequence[Pass], database: str) -> None:
    """Replace the gradients that kernels compute; the call stays for the others."""
    graph, dy = node.graph, node.args[0]
    mask = list(node.args[-1])  # type: ignore[arg-type]
    with graph.inserting_before(node):
        found: dict[Any, fx.Node] = {
            one.result: _call(graph, SOLVE, (list(one.operands), str(one.problem), database)) for one in solved
        }
        if mask[BY_BIAS]:  # the call would read dy for this alone
            found[BY_BIAS] = _call(graph, torch.ops.aten.sum.dim_IntList, (dy, [0, 2, 3]))
    for user in list(node.users):
        if user.args[1] in found:
            user.replace_all_uses_with(found[user.args[1]])
            graph.erase_node(user)
    left = [wanted and i not in found for i, wanted in enumerate(mask)]
    if any(left):
        node.args = (*node.args[:-1], left)
        node.meta["val"] = tuple(
            value if wanted else None for value, wanted in zip(node.meta["val"], left, strict=True)
        )
    else:
        graph.erase_node(node)


def _call(graph: fx.Graph, operator: Any, arguments: tuple[Any, ...]) -> fx.Node:
    """Add a call, and note its result without values, which Inductor reads."""
    node = graph.call_function(operator, arguments)
    given = fx.node.map_arg(arguments, _value)
    first = next(_value(one) for one in node.all_input_nodes)
    with first.fake_mode:  # type: ignore[attr-defined]
        node.meta["val"] = operator(*given)
    return node


def _value(argument: Any) -> torch.Tensor:
    """Return the result of a node without values."""
    value: torch.Tensor = argument.meta["val"]
    return value
