"""Replaces torch's convolutions in a graph of aten operators by the tuned kernels of their problems."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from autotune.ir import (
    JOINED_RELU,
    NORM_SCALE,
    NORM_SHIFT,
    Conv2dDgrad,
    Convolution,
    Elementwise,
    Problem,
    pack_weight,
    turn_weight,
)
from fused_resnet.training.bound_problem import can_solve, parsed
from fused_resnet.training.channels_last import ChannelsLast, channels_last
from fused_resnet.training.nodes import call, inlined, is_like, result, value
from fused_resnet.training.norm_operators import BATCH_NORM, BATCH_NORM_BACKWARD, IMAGE_OPERATORS
from fused_resnet.training.norms import TrainedNorm
from fused_resnet.training.operator import SOLVE, SOLVE_ALL
from fused_resnet.training.passes import BY_BIAS, FORWARD, Pass, passes, with_gradient_sums, with_statistics
from fused_resnet.training.winners import Winners

_FILES = tuple(str(path) for path in sorted(Path(__file__).parent.glob("*.py")))
_SELECT = torch.ops.aten.select.int
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


class Rewrite(CustomGraphPass):
    """Rewrites the graphs of one compilation; Inductor calls it for the forward and for the backward pass.

    Args:
        winners: The kernels.
    """

    def __init__(self, winners: Winners) -> None:
        self._winners = winners
        self._computed: dict[fx.Node, Pass] = {}  # results of kernels in the graph that is rewritten

    def uuid(self) -> Any:
        """Return what the rewritten graphs depend on beside the graphs; None if that has no text."""
        stamp = self._winners.stamp()
        return None if stamp is None else (get_hash_for_files(_FILES), stamp)

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a graph in place.

        Kernels leave their results channels last, so the strides of what is computed from them are noted anew.
        """
        self._computed.clear()
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
            before = set(graph.nodes)
            if node.target in (SOLVE, *IMAGE_OPERATORS):  # SOLVE: the gradient of a max pool
                _add_second_gradient(node)
                _want_channels_last(node)
                if node.target is BATCH_NORM_BACKWARD:
                    self._replace_gradient(node, layouts)
                elif node.target is BATCH_NORM:
                    self._lower_norm(node)
            elif wanted := passes(node.target, node.args, value):
                self._replace(node, wanted, layouts)
            now = set(graph.nodes)
            renewed |= now - before
            gone |= before - now
        for node in list(graph.nodes):
            self._join_normalizations(node)
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
        arguments: Any = norm.args
        x, joined, weight, bias, eps, relu, _ = arguments
        if x is not node or joined is node or any(user.op != "output" for user in node.users if user is not norm):
            return False
        parts = (problem.convolution, problem.norm)
        with node.graph.inserting_before(norm):
            found = self._fused(problem, parts, one, [weight, bias], layouts, (eps,))
            if found is None:
                return False
            y, statistics = found
            z = self._normalized(node.graph, y, statistics, joined, relu)
        _replace_results(norm, [z, statistics])
        node.replace_all_uses_with(y)
        node.graph.erase_node(node)
        return True

    def _replace_gradient(self, node: fx.Node, layouts: ChannelsLast) -> bool:
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
                found = self._fused(problem, (one.problem, problem.norm), one, more, layouts)
                if found is None:
                    continue
                dz, sums = found
                dx = _run(node.graph, _norm(x, relu).gradient, [dz, x, statistics, sums], database)
            _replace_results(node, [dx, sums, dz])
            node.graph.erase_node(own)
            return True
        return False

    def _lower_norm(self, node: fx.Node) -> None:
        """Replace a batch norm by its two passes."""
        arguments: Any = node.args
        x, joined, weight, bias, eps, relu, database = arguments
        norm = _norm(x, relu)
        with node.graph.inserting_before(node):
            found = call(node.graph, SOLVE_ALL, ([x, weight, bias], str(norm.statistics), database, "", [eps]))
            _want_channels_last(found)
            statistics = call(node.graph, operator.getitem, (found, 0))
            z = self._normalized(node.graph, x, statistics, joined, relu)
        _replace_results(node, [z, statistics])

    def _normalized(
        self, graph: fx.Graph, x: fx.Node, statistics: fx.Node, joined: fx.Node | None, relu: int
    ) -> fx.Node:
        rows = [call(graph, _SELECT, (statistics, 0, row)) for row in (NORM_SCALE, NORM_SHIFT)]
        return _run(graph, _norm(x, relu).normalization, _given(x, *rows, joined), self._winners.database)

    def _join_normalizations(self, node: fx.Node) -> None:
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
        _want_channels_last(node)
        node.graph.erase_node(added)

    def _fused(
        self,
        problem: Convolution,
        parts: Sequence[Problem],
        one: Pass,
        more: Sequence[fx.Node],
        layouts: ChannelsLast,
        scalars: tuple[float, ...] = (),
    ) -> list[fx.Node] | None:
        """Add the kernel of a pass with a part of a batch norm; None if both parts are faster one after the other.

        Args:
            problem: The problem of both.
            parts: The problems of either.
            one: The pass.
            more: The operands of the other part.
            layouts: As for `_solved`.
            scalars: The scalars of the problem.
        """
        image, weight = one.operands
        device, database, graph = value(image).device, self._winners.database, image.graph
        layout = self._winners.fused_layout(problem, parts, device)
        if layout is None or not can_solve(problem, database, device, layout, scalars):
            return None
        filters = _packed(graph, weight, layout, problem.groups, turned=isinstance(one.problem, Conv2dDgrad))
        operands = [layouts.keep(image), filters, *more]
        found = call(graph, SOLVE_ALL, (operands, str(problem), database, layout, list(scalars)))
        _want_channels_last(found, but=filters)
        outputs = sum(operand.role == "output" for operand in problem.operands())
        return [call(graph, operator.getitem, (found, i)) for i in range(outputs)]

    def _solved(self, graph: fx.Graph, one: Pass, layouts: ChannelsLast) -> fx.Node | None:
        """Add the kernel of a pass; None if there is none."""
        device, database = value(one.operands[0]).device, self._winners.database
        solutions = self._winners.solutions(one.problem, device)
        usable = (found for found in solutions if can_solve(found.form.problem, database, device, found.layout))
        solution = next(usable, None)
        if solution is None:
            return None
        problem, layout, turned = solution.form.problem, solution.layout, solution.form.turned
        operands = [
            _packed(graph, node, layout, problem.groups, turned) if operand.role == "weight" else layouts.keep(node)
            for node, operand in zip(one.operands, problem.operands(), strict=False)
        ]
        y = call(graph, SOLVE, (operands, str(problem), database, layout))
        # Inductor gives an operator of the tag needs_exact_strides its arguments with the strides of these.
        wanted = [
            value(node) if operand.role == "weight" else channels_last(value(node))
            for node, operand in zip(operands, problem.operands(), strict=False)
        ]
        y.meta["eager_input_vals"] = ((wanted, *y.args[1:]), {})
        self._computed[y] = one
        return y


def _packed(graph: fx.Graph, weight: fx.Node, layout: str, groups: int, turned: bool) -> fx.Node:
    """Add the operators that pack a weight."""

    def pack(weight: torch.Tensor) -> torch.Tensor:
        return pack_weight(turn_weight(weight, groups) if turned else weight, layout, groups)

    return inlined(graph, weight, pack)


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


def _run(graph: fx.Graph, problem: Problem, operands: Sequence[fx.Node], database: str) -> fx.Node:
    """Add the kernel of a problem without a weight."""
    y = call(graph, SOLVE, (operands, str(problem), database, ""))
    _want_channels_last(y)
    return y


def _replace_results(node: fx.Node, results: Sequence[fx.Node]) -> None:
    """Replace the results of a call, and remove it."""
    for user in list(node.users):
        position: Any = user.args[1]
        user.replace_all_uses_with(results[position])
        node.graph.erase_node(user)
    node.graph.erase_node(node)


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
