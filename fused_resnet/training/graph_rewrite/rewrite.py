"""Replaces torch's convolutions and batch norms in a graph of aten operators by the tuned kernels of their problems."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

import autotune.ir
from fused_resnet.training.convolution_passes.passes import BY_BIAS, FORWARD, Pass, passes
from fused_resnet.training.graph_rewrite.channels_last import ChannelsLast
from fused_resnet.training.graph_rewrite.image_means import MEAN, image_mean, replace_mean
from fused_resnet.training.graph_rewrite.joined_weights import join_conversions, join_packings
from fused_resnet.training.graph_rewrite.kernel_calls import convolve, want_channels_last
from fused_resnet.training.graph_rewrite.nodes import call, result, value
from fused_resnet.training.graph_rewrite.norm_fusion import NormFusion
from fused_resnet.training.graph_rewrite.relu_fusion import MASKS, ReluFusion
from fused_resnet.training.graph_rewrite.relu_gradients import relu_gradient, replace_gradient
from fused_resnet.training.kernels.bound_problem import can_solve
from fused_resnet.training.kernels.norm_operators import BATCH_NORM, BATCH_NORM_BACKWARD, IMAGE_OPERATORS
from fused_resnet.training.kernels.operator import SOLVE
from fused_resnet.training.kernels.winners import Winners

_FILES = tuple(
    str(path)
    for folder in (Path(__file__).parent, Path(autotune.ir.__file__).parent)  # problems, and how weights are packed
    for path in sorted(folder.rglob("*.py"))
)
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


class Rewrite(CustomGraphPass):
    """Rewrites the graphs of one compilation; Inductor calls it for the forward and for the backward pass.

    Args:
        winners: The kernels.
        is_compiled: Whether a compiler reads the graphs. It chooses the layout of packed weights, and joins operators.
    """

    def __init__(self, winners: Winners, is_compiled: bool) -> None:
        self._winners, self._is_compiled = winners, is_compiled

    def uuid(self) -> Any:
        """Return what the rewritten graphs depend on beside the graphs; None if that has no text."""
        stamp = self._winners.stamp()
        return None if stamp is None else (get_hash_for_files(_FILES), stamp, _tf32())

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a graph in place.

        Kernels leave their results channels last, so the strides of what is computed from them are noted anew.
        """
        with self._winners.reading():
            self._rewrite(graph)

    def _rewrite(self, graph: fx.Graph) -> None:
        renewed: set[fx.Node] = set()
        gone: set[fx.Node] = set()
        self._layouts = ChannelsLast(graph)
        self._computed: dict[fx.Node, Pass] = {}  # results of kernels
        self._norms = NormFusion(self._winners, self._layouts, self._computed)
        self._relus = ReluFusion(self._winners, self._layouts, self._computed)
        for node in list(graph.nodes):
            if node in gone:  # a batch norm that its convolution replaced
                continue
            if node.op == "call_function" and not renewed.isdisjoint(node.all_input_nodes):
                if node.target in _VIEWS:  # what was contiguous is channels last
                    node.target = torch.ops.aten.reshape.default
                node.meta["val"] = result(node.target, node.args, node.kwargs)
                renewed.add(node)
            wanted = passes(node.target, node.args, value)
            if wanted or node.target in (SOLVE, MEAN, *MASKS, *IMAGE_OPERATORS):  # SOLVE: the gradient of a max pool
                before = set(graph.nodes)
                self._replace(node, wanted)
                now = set(graph.nodes)
                renewed |= now - before
                gone |= before - now
        for node in list(graph.nodes):
            self._norms.join_normalizations(node)
        self._layouts.order()
        join_conversions(graph)
        if self._is_compiled:
            join_packings(graph)
        _move_saved_to_their_inputs(graph)

    def _replace(self, node: fx.Node, wanted: Sequence[Pass]) -> None:
        """Replace a batch norm, a ReLU's gradient, a mean, or those passes of a convolution that kernels compute."""
        if node.target in MASKS:
            if not self._relus.replace_mask(node) and (found := relu_gradient(node)):
                replace_gradient(found, self._winners.database)
        elif node.target == MEAN:
            if mean := image_mean(node):
                replace_mean(mean, self._winners.database)
        elif not wanted:
            if node.target is BATCH_NORM_BACKWARD:
                self._norms.add_second_gradient(node)
            want_channels_last(node)
            if node.target is BATCH_NORM_BACKWARD:
                self._norms.replace_with_gradient(node)
            elif node.target is BATCH_NORM:
                self._norms.lower(node)
        elif node.target != FORWARD or not (
            self._norms.replace_with_convolution(node, wanted[0]) or self._relus.replace_forward(node, wanted[0])
        ):
            self._replace_convolution(node, wanted)

    def _replace_convolution(self, node: fx.Node, wanted: Sequence[Pass]) -> None:
        with node.graph.inserting_before(node):
            solved = {one.result: self._solved(node.graph, one) for one in wanted}
            found = {position: y for position, y in solved.items() if y}
            if found and node.target == FORWARD:
                _replace_forward(node, found[0])
            elif found:
                _replace_backward(node, found)

    def _solved(self, graph: fx.Graph, one: Pass) -> fx.Node | None:
        """Add the kernel of a pass; None if there is none."""
        device, database = value(one.operands[0]).device, self._winners.database
        solutions = self._winners.solutions(one.problem, device)
        usable = (found for found in solutions if can_solve(found.form.problem, database, device, found.layout))
        solution = next(usable, None)
        if solution is None:
            return None
        form, layout = solution.form, solution.layout
        y = convolve(graph, self._layouts, form.problem, one.operands, database, layout, turned=form.turned)
        self._computed[y] = one
        return y


def _tf32() -> bool | None:
    """Return whether cuDNN rounds factors to TF32; None if it does so only in convolutions or in recurrent layers."""
    with suppress(RuntimeError):
        return torch.backends.cudnn.allow_tf32
    return None


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
