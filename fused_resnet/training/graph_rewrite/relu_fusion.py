"""Fuses ReLUs with the convolutions around them, in a graph of aten operators.

A forward pass computes the ReLU behind it, with the bias between them. A gradient with respect to a ReLU's result, as a
convolution, applies the ReLU's mask where the graph computes the mask from that result. Each fusion takes place where
the database has a kernel that is faster than the pass alone and one more pass over the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from autotune.ir.operators import Conv2d, Conv2dDgrad
from fused_resnet.training.convolution_passes.passes import Pass, with_mask, with_relu
from fused_resnet.training.graph_rewrite.channels_last import ChannelsLast
from fused_resnet.training.graph_rewrite.kernel_calls import convolve
from fused_resnet.training.graph_rewrite.nodes import call, is_like, value
from fused_resnet.training.kernels.bound_problem import can_solve
from fused_resnet.training.kernels.winners import Winners

_WHERE, _THRESHOLD = torch.ops.aten.where.self, torch.ops.aten.threshold_backward.default
MASKS = (_WHERE, _THRESHOLD)
"""The operators that compute a ReLU's gradient: where(y <= 0, 0, dy) for Inductor, and threshold_backward(dy, y, 0)."""
_RELU = torch.ops.aten.relu.default
_CONVERT = torch.ops.prims.convert_element_type.default


class ReluFusion:
    """The fusions of one graph.

    Args:
        winners: The kernels.
        layouts: The tensors of the graph that stay channels last.
        computed: The results of kernels in the graph, and the passes that they are. It may grow.
    """

    def __init__(self, winners: Winners, layouts: ChannelsLast, computed: Mapping[fx.Node, Pass]) -> None:
        self._winners, self._layouts, self._computed = winners, layouts, computed

    def replace_forward(self, node: fx.Node, one: Pass) -> bool:
        """Replace a convolution and the ReLU that alone reads it, if a kernel computes both."""
        relu, bias = next(iter(node.users), node), node.args[2]
        if relu.target != _RELU or len(node.users) > 1:
            return False
        more = [bias] if isinstance(bias, fx.Node) else []
        problem = with_relu(one.problem, has_bias=bool(more))
        layout = self._layout(problem, one)
        if problem is None or layout is None:
            return False
        graph, database = node.graph, self._winners.database
        with graph.inserting_before(node):
            vectors = [call(graph, _CONVERT, (vector, torch.float32)) for vector in more]
            y = convolve(graph, self._layouts, problem, [*one.operands, *vectors], database, layout)
        relu.replace_all_uses_with(y)
        graph.erase_node(relu)
        graph.erase_node(node)
        return True

    def replace_mask(self, node: fx.Node) -> bool:
        """Replace a ReLU's mask and the gradient that it alone reads, if a kernel computes both."""
        activity, gradient = relu_arguments(node)
        active = _result(activity)
        one = self._computed.get(gradient) if gradient else None
        if one is None or active is None or len(gradient.users) > 1 or not isinstance(one.problem, Conv2dDgrad):
            return False
        problem = with_mask(one.problem)
        layout = self._layout(problem, one)
        if problem is None or layout is None or not is_like(value(active), value(node)):
            return False
        graph, database = node.graph, self._winners.database
        with graph.inserting_before(node):
            y = convolve(graph, self._layouts, problem, [*one.operands, active], database, layout, turned=True)
        node.replace_all_uses_with(y)
        graph.erase_node(node)
        graph.erase_node(gradient)
        return True

    def _layout(self, problem: Conv2d | None, one: Pass) -> str | None:
        """Return the layout of the weight of the kernel for a pass and what is fused; None if it is not faster."""
        if problem is None:
            return None
        device = value(one.operands[0]).device
        layout = self._winners.fused_layout(problem, [one.problem], device, with_pointwise=True)
        if layout is None or not can_solve(problem, self._winners.database, device, layout):
            return None
        return layout


def relu_arguments(node: fx.Node) -> tuple[Any, Any]:
    """Return what tells where a ReLU was active, and the gradient of its result, for a call of one of MASKS.

    The former is the ReLU's result, or a tensor of bool that is true where it was not active. Both are None for a call
    that computes no ReLU's gradient.
    """
    arguments: Any = node.args
    if node.target == _THRESHOLD:
        gradient, active, threshold = arguments
        return (active, gradient) if threshold == 0 else (None, None)
    condition, zero, gradient = arguments
    return (condition, gradient) if _is_zero(zero) else (None, None)


def _result(activity: Any) -> Any:
    """Return a ReLU's result, where the graph computes a mask from it; None for another mask."""
    if activity is None or value(activity).dtype != torch.bool:
        return activity
    is_relu = activity.target == torch.ops.aten.le.Scalar and activity.args[1] == 0
    return activity.args[0] if is_relu else None


def _is_zero(node: object) -> bool:
    """Return whether a node is a tensor of one 0."""
    return isinstance(node, fx.Node) and node.target == torch.ops.aten.full.default and node.args[:2] == ([], 0.0)
