"""Operators that change a tensor in place -> operators that return the changed tensor."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from autotune.core import CaptureError, in_one_line
from fused_resnet.capture.graph_trace import TracedGraph
from fused_resnet.capture.nodes import memory, name_of, path, written
from fused_resnet.capture.result_sizes import result, without_data

_MAYBE_VIEWS = {"reshape", "reshape_as", "contiguous", "alias", "flatten", "ravel", "to"}
"""Operators that return a view where the order in memory allows it, and otherwise a copy; see AsOperators for alias."""

_ROUNDS = 3
"""Most attempts to replace changes in place. One attempt shows those inside of composite operators, such as pad."""

Program = torch.export.ExportedProgram | TracedGraph


def without_changes(program: Program) -> Program | None:
    """Return a program that changes no tensor in place and computes the same; None if torch.export is needed for it.

    Raises:
        CaptureError: It changes a parameter, a buffer or a constant, or cannot do without a change in place.
    """
    for _ in range(_ROUNDS):
        if _change_nothing(program):
            return program
        if isinstance(program, TracedGraph) and not program.can_be_decomposed:
            return None
        program = _functional(program)
    node = next((node for node in program.graph.nodes if written(node)), None)
    if node is None:
        return program
    raise CaptureError(
        f"{path(node) or 'the model'}: {name_of(node)} changes a tensor in place in a way that cannot be captured: use "
        "the operator that returns a new tensor"
    )


def _functional(program: Program) -> Program:
    """Return a program whose changes in place torch has replaced, also those of views."""
    hidden = {node.target: node for node in program.graph.nodes if _is_hidden_view(node)}
    known = torch.export.default_decompositions() if hidden else {}
    for target, node in hidden.items():
        if target not in known:
            raise CaptureError(
                f"{path(node) or 'the model'}: {name_of(node)} returns a view of its argument, which its schema does "
                "not say, and one of the two is changed in place: let it return a copy"
            )
    program.graph_module.recompile()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch's own code
            made = program.run_decompositions({target: known[target] for target in hidden})
    except Exception as error:  # a model may call anything of torch
        raise CaptureError(
            f"the model changes a tensor in place in a way that cannot be captured: {in_one_line(error)}"
        ) from error
    forget_tensors(made)
    return made


def forget_tensors(program: Program) -> None:
    """Let the fake tensors of a program forget the tensors that they stand for.

    They hold weak references, with which torch.utils.swap_tensors refuses a parameter.
    """
    values = [value for node in program.graph.nodes for value in tree_leaves(node.meta.get("val"))]
    for mode in {value.fake_mode for value in values if isinstance(value, FakeTensor)}:
        mode.fake_tensor_converter.meta_converter.describer.lookup_tensor.clear()


def _change_nothing(program: Program) -> bool:
    """Rewrite relu_(x) as relu(x), and its later readers.

    Returns:
        Whether that is possible; it is not where other tensors in the memory of x are read later, or where the other
        operator gives another dtype, as `x > 0` does for gt_(x, 0).
    """
    nodes = list(program.graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    memories = {node: memory(node) for node in nodes}
    changed = [(node, targets) for node in nodes if (targets := written(node))]
    states = {one: memories[one] for one in _states(program)} if changed else {}
    for node, targets in changed:
        _refuse_state(program, node, set().union(*(memories[target] for target in targets)), states)
    functions = {}
    for node, targets in changed:
        target, functions[node] = targets[0], _function_of(node, targets)
        others = [one for one in nodes[: place[node]] if one is not target and memories[one] & memories[target]]
        if functions[node] is None or any(place[user] > place[node] for one in others for user in one.users):
            return False
    for node, function in functions.items():
        node.target, target = function, node.args[0]  # an earlier change may have replaced it
        for user in [user for user in target.users if place[user] > place[node]]:
            user.replace_input_with(target, node)
    return True


def _states(program: Program) -> list[fx.Node]:
    """Return the placeholders of parameters, buffers and constants."""
    inputs = set(program.graph_signature.user_inputs)
    return [one for one in program.graph.nodes if one.op == "placeholder" and one.name not in inputs]


def _refuse_state(program: Program, node: fx.Node, changed: set[int], states: dict[fx.Node, set[int]]) -> None:
    """Check that a node does not change memory of the model, which a captured network would not do.

    Args:
        program: The program.
        node: The node.
        changed: The memory that it changes.
        states: The memory of each parameter, buffer and constant.
    """
    for one, of_one in states.items():
        if of_one & changed:
            signature = program.graph_signature
            names = {
                **signature.inputs_to_lifted_tensor_constants,
                **signature.inputs_to_buffers,
                **signature.inputs_to_parameters,
            }
            raise CaptureError(
                f"{path(node) or 'the model'}: forward changes '{names.get(one.name, one.name)}', and a captured "
                "network changes no state: keep such state outside forward"
            )


def _is_hidden_view(node: fx.Node) -> bool:
    """Return whether an operator returns a view of an argument, and its schema does not say so, as that of einsum."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    schema = node.target._schema
    is_told = schema.is_mutable or any(one.alias_info for one in schema.returns)
    return not is_told and any(memory(node) & memory(source) for source in node.all_input_nodes)


def _function_of(node: fx.Node, targets: list[fx.Node]) -> torch._ops.OpOverload | None:
    """Return the operator whose result an in-place operator leaves in its first argument; None if there is none."""
    operator_ = node.target
    assert isinstance(operator_, torch._ops.OpOverload)
    if not operator_._opname.endswith("_") or targets != [node.args[0]]:
        return None
    packet = getattr(getattr(torch.ops, operator_.namespace), operator_._opname.removesuffix("_"), None)
    overloads = [getattr(packet, name) for name in packet.overloads()] if packet else []
    function: torch._ops.OpOverload | None = next((one for one in overloads if _takes(one) == _takes(operator_)), None)
    if function is None:
        return None
    given = fx.map_arg((node.args, node.kwargs), lambda one: _without_data(one.meta["val"]))
    try:
        made = result(function, *given)
    except Exception:  # not every operator runs on the meta device
        return None
    return function if made.dtype == node.meta["val"].dtype else None


def _takes(operator_: torch._ops.OpOverload) -> list[tuple[str, str]]:
    """Return the names and types of an operator's arguments."""
    return [(argument.name, str(argument.type)) for argument in operator_._schema.arguments]


def _without_data(value: Any) -> Any:
    """Return a tensor without data in place of a traced one; other values as they are."""
    return without_data(value) if isinstance(value, torch.Tensor) else value


def ambiguous_views(graph: fx.Graph) -> list[tuple[str, bool]]:
    """Return the operators that may return a view or a copy, where that matters, and whether they return a view.

    It matters where the one of argument and result is changed in place, and the other is read behind that.
    """
    nodes = list(graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    memories = {node: memory(node) for node in nodes}
    changes = [(place[node], set(targets)) for node in nodes if (targets := written(node))]

    def read_behind_a_change(changed: set[fx.Node], read: set[fx.Node], start: int) -> bool:
        behind = [at for at, targets in changes if at > start and targets & changed]
        return bool(behind) and any(place[user] > behind[0] for one in read for user in one.users)

    found = []
    for node in nodes:
        if name_of(node) in _MAYBE_VIEWS:
            source = node.args[0]
            results = {node}
            for other in nodes[place[node] :]:
                if memories[other] & memories[node] and not results.isdisjoint(other.all_input_nodes):
                    results.add(other)
            sources = {one for one in nodes if memories[one] & memories[source]} - results
            if any(read_behind_a_change(*pair, place[node]) for pair in ((results, sources), (sources, results))):
                called = "contiguous" if name_of(node) == "alias" else name_of(node)
                found.append(
                    (f"{path(node) or 'the model'}: {called}", not memories[node].isdisjoint(memories[source]))
                )
    return found
