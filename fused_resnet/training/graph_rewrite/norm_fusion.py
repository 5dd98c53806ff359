"""Fuses the passes of batch norms with convolutions and with each other, in a graph of aten operators.

Each fusion takes place where the database has a kernel that was faster than its parts one after the other.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from autotune.ir import Problem
from autotune.ir.operators import JOINED_RELU, NORM_SCALE, NORM_SHIFT, Conv2dDgrad, Convolution, Elementwise
from fused_resnet.training.convolution_passes.norms import TrainedNorm
from fused_resnet.training.convolution_passes.passes import Pass, with_gradient_sums, with_statistics
from fused_resnet.training.graph_rewrite.channels_last import ChannelsLast
from fused_resnet.training.graph_rewrite.kernel_calls import packed, run, want_channels_last
from fused_resnet.training.graph_rewrite.nodes import call, is_like, value
from fused_resnet.training.kernels.bound_problem import can_solve, parsed
from fused_resnet.training.kernels.norm_operators import BATCH_NORM
from fused_resnet.training.kernels.operator import SOLVE, SOLVE_ALL
from fused_resnet.training.kernels.winners import Winners

_SELECT = torch.ops.aten.select.int


class NormFusion:
    """The fusions of one graph.

    Args:
        winners: The kernels.
        layouts: The tensors of the graph that stay channels last.
        computed: The results of kernels in the graph, and the passes that they are. It may grow.
    """

    def __init__(self, winners: Winners, layouts: ChannelsLast, computed: Mapping[fx.Node, Pass]) -> None:
        self._winners, self._layouts, self._computed = winners, layouts, computed

    def add_second_gradient(self, node: fx.Node) -> None:
        """Fuse an addition of two gradients with the sums of a norm's gradient, if nothing else reads its result."""
        arguments: Any = node.args
        dy, second, x, _, _, relu, database = arguments
        if relu != JOINED_RELU or second is not None or dy.target != torch.ops.aten.add.Tensor:
            return
        if dy.kwargs or len(dy.users) > 1:
            return
        summands = [one for one in dy.args if isinstance(one, fx.Node) and is_like(value(one), value(x))]
        if len(summands) == 2 and can_solve(_norm(x, relu).gradient_sums(2), database, value(x).device):
            node.args = (*summands, *node.args[2:])
            node.graph.erase_node(dy)

    def replace_with_convolution(self, node: fx.Node, one: Pass) -> bool:
        """Replace a convolution and the batch norm that reads it, if a kernel computes the statistics with it.

        The kernel takes the place of the batch norm, which has its operands. So only that and the backward pass may
        read the convolution.
        """
        norms = [user for user in node.users if user.target is BATCH_NORM]
        problem = with_statistics(one.problem)
        if len(norms) != 1 or isinstance(node.args[2], fx.Node) or problem is None:
            return False
        (norm,) = norms
        arguments: Any = norm.args
        x, joined, weight, bias, eps, relu, _ = arguments
        if x is not node or joined is node or any(user.op != "output" for user in node.users if user is not norm):
            return False
        parts = (problem.convolution, problem.norm)
        with node.graph.inserting_before(norm):
            found = self._fused(problem, parts, one, [weight, bias], (eps,))
            if found is None:
                return False
            y, statistics = found
            z = self._normalized(node.graph, y, statistics, joined, relu)
        _replace_results(norm, [z, statistics])
        node.replace_all_uses_with(y)
        node.graph.erase_node(node)
        return True

    def replace_with_gradient(self, node: fx.Node) -> bool:
        """Replace the gradient of a batch norm and the convolution's gradient that it reads, if a kernel computes both.

        The kernel takes the place of the former, which alone may read the latter.
        """
        arguments: Any = node.args
        dy, dy2, x, z, statistics, relu, database = arguments
        for own, other in ((dy, dy2), (dy2, dy)):
            one = self._computed.get(own)
            if one is None or len(own.users) > 1 or not isinstance(one.problem, Conv2dDgrad):
                continue
            problem = with_gradient_sums(one.problem, relu, 1 if other is None else 2)
            if problem is None:
                continue
            more = _given(x, statistics, other, z)
            with node.graph.inserting_before(node):
                found = self._fused(problem, (one.problem, problem.norm), one, more)
                if found is None:
                    continue
                dz, sums = found
                dx = run(node.graph, _norm(x, relu).gradient, [dz, x, statistics, sums], database)
            _replace_results(node, [dx, sums, dz])
            node.graph.erase_node(own)
            return True
        return False

    def lower(self, node: fx.Node) -> None:
        """Replace a batch norm by its two passes."""
        arguments: Any = node.args
        x, joined, weight, bias, eps, relu, database = arguments
        norm = _norm(x, relu)
        with node.graph.inserting_before(node):
            found = call(node.graph, SOLVE_ALL, ([x, weight, bias], str(norm.statistics), database, "", [eps]))
            want_channels_last(found)
            statistics = call(node.graph, operator.getitem, (found, 0))
            z = self._normalized(node.graph, x, statistics, joined, relu)
        _replace_results(node, [z, statistics])

    def join_normalizations(self, node: fx.Node) -> None:
        """Compute the normalization of a batch norm together with that of another whose result it adds."""
        if not _is_normalization(node, "scale,bias,add,relu"):
            return
        arguments: Any = node.args
        (x, scale, bias, added), text, database, layout = arguments
        if not _is_normalization(added, "scale,bias") or len(added.users) > 1:
            return
        device, parts = value(x).device, (parsed(text), parsed(added.args[1]))
        problem = _norm(x, JOINED_RELU).normalization_of_two
        if self._winners.fused_layout(problem, parts, device) is None or not can_solve(problem, database, device):
            return
        other_x, other_scale, other_bias = added.args[0]
        with node.graph.inserting_before(node):
            both = call(node.graph, torch.ops.aten.add.Tensor, (bias, other_bias))
        node.args = ([x, scale, both, other_x, other_scale], str(problem), database, layout)
        want_channels_last(node)
        node.graph.erase_node(added)

    def _normalized(
        self, graph: fx.Graph, x: fx.Node, statistics: fx.Node, joined: fx.Node | None, relu: int
    ) -> fx.Node:
        rows = [call(graph, _SELECT, (statistics, 0, row)) for row in (NORM_SCALE, NORM_SHIFT)]
        return run(graph, _norm(x, relu).normalization, _given(x, *rows, joined), self._winners.database)

    def _fused(
        self,
        problem: Convolution,
        parts: Sequence[Problem],
        one: Pass,
        more: Sequence[fx.Node],
        scalars: tuple[float, ...] = (),
    ) -> list[fx.Node] | None:
        """Add the kernel of a pass with a part of a batch norm; None if both parts are faster one after the other.

        Args:
            problem: The problem of both.
            parts: The problems of either.
            one: The pass.
            more: The operands of the other part.
            scalars: The scalars of the problem.
        """
        image, weight = one.operands
        device, database, graph = value(image).device, self._winners.database, image.graph
        layout = self._winners.fused_layout(problem, parts, device)
        if layout is None or not can_solve(problem, database, device, layout, scalars):
            return None
        filters = packed(graph, weight, layout, problem.groups, turned=isinstance(one.problem, Conv2dDgrad))
        operands = [self._layouts.keep(image), filters, *more]
        found = call(graph, SOLVE_ALL, (operands, str(problem), database, layout, list(scalars)))
        want_channels_last(found, but=filters)
        outputs = sum(operand.role == "output" for operand in problem.operands())
        return [call(graph, operator.getitem, (found, i)) for i in range(outputs)]


def _norm(x: fx.Node, relu: int) -> TrainedNorm:
    norm = TrainedNorm.of(value(x), relu)
    assert norm
    return norm


def _is_normalization(node: fx.Node, steps: str) -> bool:
    """Return whether a node normalizes a tensor with these steps."""
    text = str(node.args[1]) if node.target is SOLVE else ""
    return text.startswith(f"{Elementwise.operator} ") and text.endswith(f"epilogue={steps}")


def _given(*operands: fx.Node | None) -> list[fx.Node]:
    return [operand for operand in operands if operand is not None]


def _replace_results(node: fx.Node, results: Sequence[fx.Node]) -> None:
    """Replace the results of a call, and remove it."""
    for user in list(node.users):
        position: Any = user.args[1]
        user.replace_all_uses_with(results[position])
        node.graph.erase_node(user)
    node.graph.erase_node(node)
