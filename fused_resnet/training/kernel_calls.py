"""Adds calls of tuned kernels to a graph of aten operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from autotune.ir import Problem, pack_weight, turn_weight
from fused_resnet.training.channels_last import channels_last
from fused_resnet.training.nodes import call, inlined, value
from fused_resnet.training.operator import SOLVE


def packed(graph: fx.Graph, weight: fx.Node, layout: str, groups: int, turned: bool) -> fx.Node:
    """Add the operators that pack a weight."""

    def pack(weight: torch.Tensor) -> torch.Tensor:
        return pack_weight(turn_weight(weight, groups) if turned else weight, layout, groups)

    return inlined(graph, weight, pack)


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
