"""Replaces batch norms in training and max pools in a graph of Dynamo by operators that run tuned kernels.

This happens before AOTAutograd differentiates the graph: there a batch norm is one call, and its gradient one operator
too, which Inductor would split into pointwise operators and sums.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from autotune.ir.operators import JOINED_RELU, NO_RELU, OWN_RELU
from fused_resnet.training.convolution_passes.norms import (
    ADDITIONS,
    IN_PLACE,
    MAX_POOLS,
    READERS,
    RELUS,
    TrainedNorm,
    TrainedPool,
    batch_norm_arguments,
    is_trained,
)
from fused_resnet.training.convolution_passes.norms import BATCH_NORM as TORCH_BATCH_NORM
from fused_resnet.training.graph_rewrite.nodes import is_like
from fused_resnet.training.kernels.bound_problem import can_solve
from fused_resnet.training.kernels.norm_operators import BATCH_NORM, MAX_POOL

_IN_PLACE_OPERATORS = (
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod, operator.ipow,
    operator.imatmul, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift, operator.setitem,
)  # fmt: skip


@dataclass(frozen=True)
class _Running:
    """The running statistics of a batch norm, what they follow from, and the weight of a batch."""

    mean: fx.Node
    variance: fx.Node
    statistics: fx.Node
    momentum: float


@dataclass(frozen=True)
class _Chain:
    """A batch norm with what follows it.

    Attributes:
        nodes: The batch norm, the addition and the ReLU, as far as they are fused.
        norm: The problems.
        joined: The tensor that is added.
    """

    nodes: tuple[fx.Node, ...]
    norm: TrainedNorm
    joined: fx.Node | None = None


def rewrite_norms(graph_module: fx.GraphModule, database: str, device: torch.device) -> None:
    """Replace, in place, the calls for which a database has all kernels.

    Args:
        graph_module: The graph.
        database: The database, which `use` has made known.
        device: The device of the tensors.
    """
    graph = graph_module.graph
    running: list[_Running] = []
    for node in list(graph.nodes):
        if node.target is TORCH_BATCH_NORM:
            running += _replace_norm(node, database, device)
        elif node.target in MAX_POOLS:
            _replace_pool(node, database, device)
    with graph.inserting_before(next(node for node in graph.nodes if node.op == "output")):
        for group in _groups(running):
            _add_update(graph, group)
        _join_counters(graph)
    graph_module.recompile()


def _replace_norm(node: fx.Node, database: str, device: torch.device) -> list[_Running]:
    """Replace a batch norm if it is in training and has kernels; return its running statistics, if it has any."""
    if not is_trained(node.args, node.kwargs):
        return []
    given = batch_norm_arguments(node.args, node.kwargs)
    x, weight, bias, momentum = given["input"], given["weight"], given["bias"], given["momentum"]
    mean, variance = given["running_mean"], given["running_var"]
    if mean is not None and (momentum is None or not all(_is_only_updated(one) for one in (mean, variance))):
        return []
    eps = float(given["eps"])
    ways = (one for one in _chains(node, x) if not _are_operands_changed_within(one))
    chain = next((one for one in ways if _has_kernels(one.norm, eps, database, device)), None)
    if chain is None:
        return []
    graph, last = node.graph, chain.nodes[-1]
    with graph.inserting_before(last):
        factors = [graph.call_method("float", (one,)) for one in (weight, bias)]
        arguments = (x, chain.joined, *factors, eps, chain.norm.relu, database)
        both = graph.call_function(BATCH_NORM, arguments)
        y, statistics = (graph.call_function(operator.getitem, (both, i)) for i in range(2))
    y.meta.update(last.meta)
    last.replace_all_uses_with(y)
    for one in reversed(chain.nodes):
        graph.erase_node(one)
    return [] if mean is None else [_Running(mean, variance, statistics, momentum)]


def _is_only_updated(buffer: object) -> bool:
    """Return whether batch norms in training are the only readers of a running statistic."""
    return isinstance(buffer, fx.Node) and all(
        user.target is TORCH_BATCH_NORM and is_trained(user.args, user.kwargs) for user in buffer.users
    )


def _chains(node: fx.Node, x: fx.Node) -> list[_Chain]:
    """Return the ways to fuse a batch norm with what follows it, the longest first."""
    value = _value(x)
    if value is None or (alone := TrainedNorm.of(value, NO_RELU)) is None:
        return []
    are_apart = all(user.target in (*READERS, BATCH_NORM, MAX_POOL) for user in node.users)
    found = [_Chain((node,), alone)] if are_apart else []
    user = _only_user(node)
    if user and user.target in RELUS:
        found.append(_Chain((node, user), replace(alone, relu=OWN_RELU)))
    elif user and user.target in ADDITIONS and len(user.args) == 2 and not user.kwargs:
        other: Any = next((one for one in user.args if one is not node), None)
        relu, is_free = _only_user(user), user.target not in IN_PLACE or user.args[0] is node
        added = _value(other) if is_free and isinstance(other, fx.Node) else None
        if added is not None and is_like(added, value) and relu and relu.target in RELUS:
            found.append(_Chain((node, user, relu), replace(alone, relu=JOINED_RELU), other))
    return found[::-1]


def _are_operands_changed_within(chain: _Chain) -> bool:
    """Return whether a tensor that a chain reads is changed between its calls: where the last one is, all are read."""
    operands = {one for node in chain.nodes for one in node.all_input_nodes} - set(chain.nodes)
    memory = {_memory(one) for one in operands}
    node = chain.nodes[0]
    while node is not chain.nodes[-1]:
        node = node.next
        if node not in chain.nodes and not memory.isdisjoint(map(_memory, _changed(node))):
            return True
    return False


def _changed(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that a call of torch may change in place."""
    if node.op not in ("call_method", "call_function"):
        return []
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_in_place = (name.endswith("_") and not name.endswith("__")) or node.target in _IN_PLACE_OPERATORS
    changed = [node.kwargs.get("out"), *(node.args[:1] if is_in_place else ())]
    return [one for one in changed if isinstance(one, fx.Node)]


def _memory(node: fx.Node) -> int | None:
    """Return what identifies the memory of a node's result, which views share; None if that is not known."""
    value = _value(node)
    return None if value is None else value.untyped_storage()._cdata


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _value(node: fx.Node) -> torch.Tensor | None:
    """Return Dynamo's example of a node's result."""
    value = node.meta.get("example_value")
    return value if isinstance(value, torch.Tensor) else None


def _has_kernels(norm: TrainedNorm, eps: float, database: str, device: torch.device) -> bool:
    """Return whether a database has kernels for all passes, but for the one that an addition of gradients may need."""
    others = (norm.normalization, norm.gradient_sums(), norm.gradient)
    return can_solve(norm.statistics, database, device, scalars=(eps,)) and all(
        can_solve(problem, database, device) for problem in others
    )


def _replace_pool(node: fx.Node, database: str, device: torch.device) -> None:
    """Replace a max pool if both of its passes have kernels."""
    arguments: Any = node.args
    named: Any = node.kwargs
    x, *window = arguments
    value = _value(x)
    trained = None if value is None else TrainedPool.of(value, *window, **named)
    if trained is None or not all(can_solve(one, database, device) for one in (trained.pool, trained.gradient)):
        return
    graph = node.graph
    with graph.inserting_before(node):
        pooled = graph.call_function(MAX_POOL, (x, str(trained.pool), str(trained.gradient), database))
        y = graph.call_function(operator.getitem, (pooled, 0))
    y.meta.update(node.meta)
    node.replace_all_uses_with(y)
    graph.erase_node(node)


def _groups(running: Sequence[_Running]) -> list[list[_Running]]:
    """Return the running statistics that are updated together: those of one momentum, each buffer once a group."""
    groups: list[list[_Running]] = []
    for one in running:
        fits = (
            group
            for group in groups
            if group[0].momentum == one.momentum and all(one.mean is not other.mean for other in group)
        )
        group = next(fits, None)
        if group is None:
            groups.append(group := [])
        group.append(one)
    return groups


def _add_update(graph: fx.Graph, group: Sequence[_Running]) -> None:
    means, variances, statistics = (
        [getattr(one, name) for one in group] for name in ("mean", "variance", "statistics")
    )
    graph.call_function(update_running, (means, variances, statistics, group[0].momentum))


def _join_counters(graph: fx.Graph) -> None:
    """Count the batches of all batch norms by one operator, where each counter has no other reader."""
    counted: dict[torch.device, list[fx.Node]] = {}
    for node in graph.nodes:
        counter: Any = node.args[0] if node.args else None
        if node.op == "call_method" and node.target == "add_" and node.args[1:] == (1,) and not node.kwargs:
            buffer = _value(counter)
            if not node.users and list(counter.users) == [node] and buffer is not None and buffer.dtype == torch.int64:
                counted.setdefault(buffer.device, []).append(node)
    for nodes in counted.values():
        if len(nodes) > 1:
            graph.call_function(torch._foreach_add_, ([node.args[0] for node in nodes], 1))
            for node in nodes:
                graph.erase_node(node)


def update_running(
    means: list[torch.Tensor], variances: list[torch.Tensor], statistics: Sequence[torch.Tensor], momentum: float
) -> None:
    """Move running statistics towards those of a batch, as torch does.

    Args:
        means: Running means, which are changed.
        variances: Running variances, likewise.
        statistics: The statistics of the batch, as BatchNormStatistics computes them.
        momentum: Weight of the batch.
    """
    with torch.no_grad():
        for row, buffers in enumerate((means, variances)):
            new = [one.detach()[row].to(buffer.dtype) for one, buffer in zip(statistics, buffers, strict=True)]
            torch._foreach_mul_(buffers, 1 - momentum)
            torch._foreach_add_(buffers, new, alpha=momentum)
