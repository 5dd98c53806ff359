"""Replaces torch's convolutions in a graph of aten operators by the tuned kernels of their problems."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from autotune.ir import JOINED_RELU, NORM_SCALE, NORM_SHIFT, pack_weight, turn_weight
from fused_resnet.training.bound_problem import can_solve
from fused_resnet.training.channels_last import ChannelsLast, channels_last
from fused_resnet.training.nodes import call, inlined, is_like, result, value
from fused_resnet.training.norm_operators import BATCH_NORM, BATCH_NORM_BACKWARD, IMAGE_OPERATORS
from fused_resnet.training.norms import TrainedNorm
from fused_resnet.training.operator import SOLVE, SOLVE_ALL
from fused_resnet.training.passes import BY_BIAS, FORWARD, Pass, passes, with_statistics
from fused_resnet.training.winners import Winners

_FILES = tuple(str(path) for path in sorted(Path(__file__).parent.glob("*.py")))
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


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
        """Rewrite a graph in place.

        Kernels leave their results channels last, so the strides of what is computed from them are noted anew.
        """
        renewed: set[fx.Node] = set()
        gone: set[fx.Node] = set()
        layouts = ChannelsLast(graph)
        for node in list(graph.nodes):
            if node in gone:  # a batch norm, with its convolution
                continue
            if node.op == "call_function" and not renewed.isdisjoint(node.all_input_nodes):
                if node.target in _VIEWS:  # what was contiguous is channels last
                    node.target = torch.ops.aten.reshape.default
                node.meta["val"] = result(node.target, node.args, node.kwargs)
                renewed.add(node)
            if node.target in (SOLVE, *IMAGE_OPERATORS):  # SOLVE: the gradient of a max pool
                _add_second_gradient(node)
                _want_channels_last(node)
            if wanted := passes(node.target, node.args, value):
                before = set(graph.nodes)
                self._replace(node, wanted, layouts)
                now = set(graph.nodes)
                renewed |= now - before
                gone |= before - now
        layouts.order()
        _move_saved_to_their_inputs(graph)

    def _replace(self, node: fx.Node, wanted: Sequence[Pass], layouts: ChannelsLast) -> None:
        """Replace those passes of a call that kernels compute."""
        if node.target == FORWARD and self._replace_with_norm(node, wanted[0], layouts):
            return
        with node.graph.inserting_before(node):
            solved = {one.result: self._solved(node.graph, one, layouts) for one in wanted}
            found = {position: y for position, y in solved.items() if y}
            if found and node.target == FORWARD:
                _replace_forward(node, found[0])
            elif found:
                _replace_backward(node, found)

    def _replace_with_norm(self, node: fx.Node, one: Pass, layouts: ChannelsLast) -> bool:
        """Replace a convolution and the batch norm that reads it, if a kernel computes the statistics with it.

        The kernel takes the place of the batch norm, which has its operands. So only that and the backward pass may
        read the convolution.
        """
        norms = [user for user in node.users if user.target is BATCH_NORM]
        problem = with_statistics(one.problem)
        if len(norms) != 1 or isinstance(node.args[2], fx.Node) or problem is None:
            return False
        (norm,) = norms
        others = [user for user in node.users if user is not norm and user.op != "output"]
        arguments: Any = norm.args
        x, joined, weight, bias, eps, relu, database = arguments
        device = value(node).device
        layout = None if others or x is not node or joined is node else self._winners.with_statistics(problem, device)
        if layout is None or not can_solve(problem, database, device, layout, (eps,)):
            return False
        trained = TrainedNorm.of(value(node), relu)
        assert trained
        graph = node.graph
        with graph.inserting_before(norm):

            def packed(weight: torch.Tensor) -> torch.Tensor:
                return pack_weight(weight, layout, problem.groups)

            image, filters = one.operands
            operands = [layouts.keep(image), inlined(graph, filters, packed), weight, bias]
            found = call(graph, SOLVE_ALL, (operands, str(problem), database, layout, [eps]))
            y, statistics = (call(graph, operator.getitem, (found, i)) for i in range(2))
            rows = [call(graph, torch.ops.aten.select.int, (statistics, 0, row)) for row in (NORM_SCALE, NORM_SHIFT)]
            added = [] if joined is None else [joined]
            z = call(graph, SOLVE, ([y, *rows, *added], str(trained.normalization), database, ""))
            for solved in (found, z):
                _want_channels_last(solved, but=operands[1])
        for user in list(norm.users):
            user.replace_all_uses_with(z if user.args[1] == 0 else statistics)
            graph.erase_node(user)
        graph.erase_node(norm)
        node.replace_all_uses_with(y)
        graph.erase_node(node)
        return True

    def _solved(self, graph: fx.Graph, one: Pass, layouts: ChannelsLast) -> fx.Node | None:
        """Add the kernel of a pass; None if there is none."""
        device, database = value(one.operands[0]).device, self._winners.database
        solutions = self._winners.solutions(one.problem, device)
        usable = (found for found in solutions if can_solve(found.form.problem, database, device, found.layout))
        solution = next(usable, None)
        if solution is None:
            return None
        problem, layout, turned = solution.form.problem, solution.layout, solution.form.turned

        def packed(weight: torch.Tensor) -> torch.Tensor:
            return pack_weight(turn_weight(weight, problem.groups) if turned else weight, layout, problem.groups)

        operands = [
            inlined(graph, node, packed) if operand.role == "weight" else layouts.keep(node)
            for node, operand in zip(one.operands, problem.operands(), strict=False)
        ]
        y = call(graph, SOLVE, (operands, str(problem), database, layout))
        # Inductor gives an operator of the tag needs_exact_strides its arguments with the strides of these.
        wanted = [
            value(node) if operand.role == "weight" else channels_last(value(node))
            for node, operand in zip(operands, problem.operands(), strict=False)
        ]
        y.meta["eager_input_vals"] = ((wanted, *y.args[1:]), {})
        return y


def _want_channels_last(node: fx.Node, but: fx.Node | None = None) -> None:
    """Note that an operator on images takes them channels last, whatever their strides were when it was traced.

    Args:
        node: The call.
        but: A packed weight, which stays as it is.
    """

    def wanted(operand: fx.Node) -> torch.Tensor:
        is_image = value(operand).dim() == 4 and operand is not but
        return channels_last(value(operand)) if is_image else value(operand)

    node.meta["eager_input_vals"] = (fx.node.map_arg(node.args, wanted), {})


def _add_second_gradient(node: fx.Node) -> None:
    """Fuse an addition of two gradients with the sums of a batch norm's gradient, if nothing else reads its result."""
    arguments: Any = node.args
    if node.target is not BATCH_NORM_BACKWARD or arguments[5] != JOINED_RELU:
        return
    dy, second, x, _, _, relu, database = arguments
    norm = TrainedNorm.of(value(x), relu)
    if norm is None or second is not None or dy.target != torch.ops.aten.add.Tensor or dy.kwargs or len(dy.users) > 1:
        return
    summands = [one for one in dy.args if isinstance(one, fx.Node) and is_like(value(one), value(x))]
    if len(summands) == 2 and can_solve(norm.gradient_sums(2), database, value(x).device):
        node.args = (*summands, *node.args[2:])
        node.graph.erase_node(dy)


def _replace_forward(node: fx.Node, y: fx.Node) -> None:
    """Replace a convolution by a result without the bias."""
    if isinstance(bias := node.args[2], fx.Node):
        by_channel = call(node.graph, torch.ops.aten.view.default, (bias, [1, -1, 1, 1]))
        y = call(node.graph, torch.ops.aten.add.Tensor, (y, by_channel))
    node.replace_all_uses_with(y)
    node.graph.erase_node(node)


def _replace_backward(node: fx.Node, found: dict[int, fx.Node]) -> None:
    """Replace gradients; the call stays for the others."""
    mask = list(node.args[-1])  # type: ignore[arg-type]
    if mask[BY_BIAS]:  # the call would read dy for this alone
        found[BY_BIAS] = call(node.graph, torch.ops.aten.sum.dim_IntList, (node.args[0], [0, 2, 3]))
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


def _move_saved_to_their_inputs(graph: fx.Graph) -> None:
    """Move what is only computed for the backward pass behind its inputs.

    Autograd's graphs end with it, such as the masks of activations. Inductor does not fuse operators that are far apart
    in a graph if that keeps large tensors for longer.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        is_saved = node.op == "call_function" and {user.op for user in node.users} == {"output"}
        if is_saved and isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable:
            latest = max(node.all_input_nodes, key=order.__getitem__, default=None)
            if latest and latest.op != "placeholder":
                latest.append(node)
