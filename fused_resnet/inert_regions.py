"""Regions of a graph in a mode that changes nothing in inference: their operators become part of the graph itself.

These are autocast that is switched off, gradient modes, and checkpoints, which only matter for a backward pass.
"""

from __future__ import annotations

from typing import Any

from torch import fx, nn

_AUTOCAST = "wrap_with_autocast"
_BODIES = {_AUTOCAST: 4, "wrap_with_set_grad_enabled": 1, "tag_activation_checkpoint": 0, "wrap": 0}
"""Name of an operator of torch that runs a graph -> the place of that graph among its arguments."""
_ENTER = "_enter_autocast"
"""Name of the function that begins autocast in a graph of Dynamo; another one, which takes its result, ends it."""


def inline_inert_regions(root: nn.Module, graph: fx.Graph) -> None:
    """Replace each inert region of a graph by its operators, the regions inside of it, too.

    Args:
        root: The module that holds the graphs of the regions, which stay as they are.
        graph: The graph, which is changed.
    """
    while (node := next(filter(_is_inert, graph.nodes), None)) is not None:
        if _name(node) == _ENTER:
            for end in list(node.users):
                graph.erase_node(end)
            graph.erase_node(node)
        else:
            _inline(root, graph, node, _BODIES[_name(node)])


def _name(node: fx.Node) -> str:
    return getattr(node.target, "__name__", "")


def _is_inert(node: fx.Node) -> bool:
    """Return whether an inert region begins at a node. The third argument of autocast's is whether it is on."""
    name = _name(node)
    return not node.args[2] if name in (_AUTOCAST, _ENTER) else name in _BODIES


def _inline(root: nn.Module, graph: fx.Graph, node: fx.Node, place: int) -> None:
    """Replace a node by the operators of the graph that it runs; the arguments behind the graph are its inputs."""
    body = node.args[place]
    assert isinstance(body, fx.Node)
    module = root.get_submodule(str(body.target))
    assert isinstance(module, fx.GraphModule)
    places = [one for one in module.graph.nodes if one.op == "placeholder"]
    copied: dict[fx.Node, Any] = dict(zip(places, node.args[place + 1 :], strict=True))
    with graph.inserting_before(node):
        results: Any = graph.graph_copy(module.graph, copied)
    for before, now in copied.items():
        if before.op == "get_attr":
            now.target = f"{body.target}.{before.target}"
    if isinstance(results, fx.Node):
        node.replace_all_uses_with(results)
    else:
        for user in list(node.users):  # getitem
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)
    if not body.users:
        graph.erase_node(body)
