"""Replaces torch's convolutions in a graph of aten operators by the tuned kernels of their problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx.experimental.proxy_tensor import make_fx

from autotune.ir import pack_weight
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
            with graph.inserting_before(node):
                found = {
                    one.result: y for one in passes(node.target, node.args, _value) if (y := self._solved(graph, one))
                }
                if found and node.target == FORWARD:
                    _replace_forward(node, found[0])
                elif found:
                    _replace_backward(node, found)

    def _solved(self, graph: fx.Graph, one: Pass) -> fx.Node | None:
        """Add the kernel of a pass; None if there is none."""
        problem = one.problem
        layout = self._winners.layout(problem, _value(one.operands[0]).device)
        if layout is None:
            return None
        roles = [operand.role for operand in problem.operands()]
        operands = [
            _packed(graph, node, layout, problem.groups) if role == "weight" else node
            for node, role in zip(one.operands, roles, strict=False)
        ]
        return _call(graph, SOLVE, (operands, str(problem), self._winners.database, layout))


def _replace_forward(node: fx.Node, y: fx.Node) -> None:
    """Replace a convolution by a result without the bias."""
    if isinstance(bias := node.args[2], fx.Node):
        by_channel = _call(node.graph, torch.ops.aten.view.default, (bias, [1, -1, 1, 1]))
        y = _call(node.graph, torch.ops.aten.add.Tensor, (y, by_channel))
    node.replace_all_uses_with(y)
    node.graph.erase_node(node)


def _replace_backward(node: fx.Node, found: dict[int, fx.Node]) -> None:
    """Replace gradients; the call stays for the others."""
    mask = list(node.args[-1])  # type: ignore[arg-type]
    if mask[BY_BIAS]:  # the call would read dy for this alone
        found[BY_BIAS] = _call(node.graph, torch.ops.aten.sum.dim_IntList, (node.args[0], [0, 2, 3]))
    for user in list(node.users):
        position: Any = user.args[1]
        if position in found:
            user.replace_all_uses_with(found[position])
            node.graph.erase_node(user)
    left = [wanted and i not in found for i, wanted in enumerate(mask)]
    if any(left):
        node.args = (*node.args[:-1], left)
        node.meta["val"] = tuple(
            value if wanted else None for value, wanted in zip(node.meta["val"], left, strict=True)
        )
    else:
        node.graph.erase_node(node)


def _packed(graph: fx.Graph, weight: fx.Node, layout: str, groups: int) -> fx.Node:
    """Add the operators that pack a weight."""
    value: Any = _value(weight)
    with value.fake_mode:
        traced = make_fx(lambda tensor: pack_weight(tensor, layout, groups))(value)
    copies: dict[fx.Node, fx.Node] = {}
    for node in traced.graph.nodes:
        if node.op == "output":
            return copies[node.args[0]]
        copies[node] = weight if node.op == "placeholder" else graph.node_copy(node, copies.__getitem__)
    raise AssertionError("a graph without an output")


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
