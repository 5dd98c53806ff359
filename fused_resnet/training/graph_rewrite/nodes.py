"""Adds nodes to a graph of aten operators, with the results without values that Inductor reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves


def inlined(graph: fx.Graph, node: fx.Node, function: Callable[[torch.Tensor], torch.Tensor]) -> fx.Node:
    """Add the operators that a function of a tensor calls, decomposed as Inductor needs them."""
    example: Any = value(node)
    with example.fake_mode:
        traced = make_fx(function, select_decomp_table())(example)
    copies: dict[fx.Node, fx.Node] = {}
    for inner in traced.graph.nodes:
        if inner.op == "output":
            return copies[inner.args[0]]
        copies[inner] = node if inner.op == "placeholder" else graph.node_copy(inner, copies.__getitem__)
    raise AssertionError("a graph without an output")


def call(graph: fx.Graph, operator: Any, arguments: tuple[Any, ...]) -> fx.Node:
    """Add a call, and note its result without values, which Inductor reads."""
    node = graph.call_function(operator, arguments)
    node.meta["val"] = result(operator, node.args, {})
    return node


def result(operator: Any, arguments: Any, keywords: Any) -> Any:
    """Return the result of a call without values; the metadata of its arguments count."""
    given, named = fx.node.map_arg((arguments, keywords), lambda node: node.meta["val"])
    tensors = [one for one in tree_leaves((given, named)) if isinstance(one, FakeTensor)]
    with tensors[0].fake_mode:
        return operator(*given, **named)


def is_like(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have one shape and dtype."""
    return one.shape == other.shape and one.dtype == other.dtype


def value(argument: Any) -> torch.Tensor:
    """Return the result of a node without values."""
    value: torch.Tensor = argument.meta["val"]
    return value


def is_images(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has four dimensions, none of which is dynamic."""
    return tensor.dim() == 4 and all(isinstance(size, int) for size in tensor.shape)


def erase(node: fx.Node) -> None:
    """Remove a call that nothing reads, and those of its arguments that nothing else reads."""
    if node.op == "call_function" and not node.users:
        arguments = node.all_input_nodes
        node.graph.erase_node(node)
        for one in arguments:
            erase(one)
