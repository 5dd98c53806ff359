"""Adds calls of tuned kernels to a graph of aten operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from autotune.ir import Problem, pack_weight, turn_weight
from autotune.ir.operators import Convolution
from fused_resnet.training.graph_rewrite.channels_last import ChannelsLast, channels_last
from fused_resnet.training.graph_rewrite.nodes import call, inlined, value
from fused_resnet.training.kernels.operator import SOLVE


def packed(graph: fx.Graph, weight: fx.Node, layout: str, groups: int, turned: bool) -> fx.Node:
    """Add the operators that pack a weight."""

    def pack(weight: torch.Tensor) -> torch.Tensor:
        return pack_weight(turn_weight(weight, groups) if turned else weight, layout, groups)

    return inlined(graph, weight, pack)


def convolve(
    graph: fx.Graph,
    layouts: ChannelsLast,
    problem: Convolution,
    operands: Sequence[fx.Node],
    database: str,
    layout: str,
    *,
    turned: bool = False,
) -> fx.Node:
    """Add the kernel of a convolution, or of one of its gradients.

    Args:
        graph: The graph.
        layouts: The tensors of the graph that stay channels last.
        problem: The problem.
        operands: Its inputs, in their order; the weight is not packed.
        database: The database of the kernel.
        layout: The layout in which it reads the weight.
        turned: Whether its weight is the turned one.
    """
    roles = [operand.role for operand in problem.operands() if operand.role != "output"]

    def prepared(node: fx.Node, role: str) -> fx.Node:
        if role == "weight":
            return packed(graph, node, layout, problem.groups, turned)
        return layouts.keep(node) if role == "input" else node

    ready = [prepared(node, role) for node, role in zip(operands, roles, strict=True)]
    y = call(graph, SOLVE, (ready, str(problem), database, layout))
    # Inductor gives an operator of the tag needs_exact_strides its arguments with the strides of these.
    images = (role == "input" for role in roles)
    wanted = [channels_last(value(node)) if image else value(node) for node, image in zip(ready, images, strict=True)]
    y.meta["eager_input_vals"] = ((wanted, *y.args[1:]), {})
    return y


def run(graph: fx.Graph, problem: Problem, operands: Sequence[fx.Node], database: str) -> fx.Node:
    """Add the kernel of a problem without a weight."""
    y = call(graph, SOLVE, (operands, str(problem), database, ""))
    want_channels_last(y)
    return y


def want_channels_last(node: fx.Node, but: fx.Node | None = None) -> None:
    """Note that an operator on images takes them channels last, whatever their strides were when it was traced.

    Args:
        node: The call.
        but: A packed weight, which stays as it is.
    """

    def wanted(operand: fx.Node) -> torch.Tensor:
        is_image = value(operand).dim() == 4 and operand is not but
        return channels_last(value(operand)) if is_image else value(operand)

    node.meta["eager_input_vals"] = (fx.node.map_arg(node.args, wanted), {})
