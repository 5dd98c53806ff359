"""Keeps 4-d tensors channels last in the code that Inductor generates for a graph.

Inductor chooses a layout for each tensor that it writes to memory. Where a whole tensor is summed up it may choose NCHW
even if all that is read is channels last. Its kernels that read tensors of both layouts reach about half of the
memory's bandwidth.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._inductor import inductor_prims

from fused_resnet.training.graph_rewrite.nodes import call, value
from fused_resnet.training.kernels.norm_operators import IMAGE_OPERATORS
from fused_resnet.training.kernels.operator import SOLVE, SOLVE_ALL

FORCE_STRIDE_ORDER = inductor_prims.force_stride_order
"""(x, strides) -> x with the order of these strides; Inductor computes x in that order, if it is free to."""
_ATEN = torch.ops.aten
_SUMS = (_ATEN.sum.default, _ATEN.sum.dim_IntList)


class ChannelsLast:
    """The tensors of one graph that stay channels last.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._kept: dict[fx.Node, fx.Node] = {}  # tensors, and the same channels last

    def keep(self, node: fx.Node) -> fx.Node:
        """Return a tensor that Inductor keeps channels last, for all its users.

        Otherwise Inductor may compute the tensor in another layout, and copy it for each kernel that reads it.
        """
        if node in self._kept or node in self._kept.values():
            return self._kept.get(node, node)
        last = channels_last(value(node))
        if _is_result(node) or (node.op == "placeholder" and value(node).stride() == last.stride()):
            return node
        first = next(other for other in self._graph.nodes if other.op != "placeholder")
        with self._graph.inserting_before(first if node.op == "placeholder" else node.next):
            kept = call(self._graph, FORCE_STRIDE_ORDER, (node, list(last.stride())))
        kept.meta["val"] = last
        node.replace_all_uses_with(kept, delete_user_cb=lambda user: user is not kept)
        self._kept[node] = kept
        return kept

    def order(self) -> None:
        """Add up whole tensors in the order of memory, and keep those that others read channels last.

        The sum of a whole tensor is a kernel of its own. So a tensor of which another operator reads the elements is in
        memory in any case.
        """
        for node in [one for one in self._graph.nodes if _is_whole_sum(one)]:
            x = node.args[0]
            if len(x.users) > 1 and x.op == "call_function":
                x = self.keep(x)
            with self._graph.inserting_before(node):
                in_memory = call(self._graph, _ATEN.permute.default, (x, [0, 2, 3, 1]))
            node.args = (in_memory, *node.args[1:])


def _is_result(node: fx.Node) -> bool:
    """Return whether a kernel computes a tensor: it is channels last."""
    called: Any = node.args[0] if node.target is operator.getitem else node
    return called.target in (SOLVE, SOLVE_ALL, *IMAGE_OPERATORS)


def channels_last(tensor: Any) -> torch.Tensor:
    """Return a tensor without values of the same shape that is channels last."""
    with tensor.fake_mode:
        last: torch.Tensor = tensor.contiguous(memory_format=torch.channels_last)
    return last


def _is_whole_sum(node: fx.Node) -> bool:
    if node.target not in _SUMS or not _is_channels_last(node.args[0]):
        return False
    dims: Any = node.args[1] if len(node.args) > 1 else None
    return not dims or len(set(dims)) == value(node.args[0]).dim()


def _is_channels_last(node: Any) -> bool:
    tensor = value(node)
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
