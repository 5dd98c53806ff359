"""Tracing of a DynamoGraph: it is a graph already, so each node is executed once on fake tensors.

That takes half the time of torch.export, which would also lose the submodules that the nodes come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.utils._pytree import TreeSpec, tree_flatten

from autotune.core import CaptureError, in_one_line
from fused_resnet.dynamo_graph import DynamoGraph

_TRAINING = ("train", "training")


@dataclass(frozen=True)
class CallSpec:
    """The structure of the results."""

    out_spec: TreeSpec


@dataclass(frozen=True)
class TracedGraph:
    """The part of torch.export.ExportedProgram that a capture needs.

    Attributes:
        graph_module: The graph of aten operators.
        graph_signature: What its placeholders are.
        call_spec: The structure of its results.
        constants: The tensors that the graph makes itself, by name.
        functional: Traces again, without changes in place.
    """

    graph_module: fx.GraphModule
    graph_signature: ExportGraphSignature
    call_spec: CallSpec
    constants: Mapping[str, torch.Tensor]
    functional: Callable[[], TracedGraph]

    @property
    def graph(self) -> fx.Graph:
        """The graph of aten operators."""
        return self.graph_module.graph

    def run_decompositions(self, _: Mapping[Any, Any]) -> TracedGraph:
        """Return the graph without changes in place."""
        return self.functional()


class _Interpreted(nn.Module):
    """Runs a graph node by node, so that each operator is recorded with the submodule of its node."""

    def __init__(self, graph: DynamoGraph) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *inputs: torch.Tensor) -> Any:
        return fx.Interpreter(self.graph).run(*inputs)


def trace_graph(model: DynamoGraph, inputs: tuple[torch.Tensor, ...], functional: bool = False) -> TracedGraph:
    """Trace a graph of torch-level operators for inputs like these.

    Args:
        model: The graph.
        inputs: Tensors with the shape, dtype and device of the inputs.
        functional: Whether changes in place are replaced.

    Raises:
        CaptureError: The graph changes its inputs, is in training mode, sets autocast, or needs the
            values of tensors.
    """
    _refuse_modes(model)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    spec: list[TreeSpec] = []

    def run(tensors: list[torch.Tensor], *given: torch.Tensor) -> Any:
        named = {f"graph.{name}": tensor for name, tensor in zip(state, tensors, strict=True)}
        leaves, structure = tree_flatten(torch.func.functional_call(_Interpreted(model), named, given))
        spec[:] = [structure]
        return tuple(leaves)

    with FakeTensorMode(), preserve_node_meta(), torch.no_grad():
        tensors = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in state.values()]
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in inputs]
        tracer = make_fx(torch.func.functionalize(run) if functional else run, pre_dispatch=not functional)
        try:
            traced = tracer(tensors, *fakes)
        except Exception as error:  # a graph may call anything of torch
            raise CaptureError(f"the graph cannot be traced: {in_one_line(error)}") from error
    places = [node for node in traced.graph.nodes if node.op == "placeholder"]
    names = [node.name for node in model.graph.nodes if node.op == "placeholder"]
    given = dict(zip(places[len(state) :], names, strict=True))
    for node in traced.graph.nodes:
        if node not in given and node.name in names:  # an operator has the name of an input
            node.name = traced.graph._graph_namespace.create_name(node.name, None)
    for node, name in given.items():
        node.name = node.target = name  # the names of buffers are part of the network's identity
    _refuse_training(traced.graph)
    _refuse_changed_inputs(traced.graph, places[len(state) :])
    lifted = _lift_constants(traced)
    signature = _signature(traced.graph, list(state), names, list(lifted))
    return TracedGraph(
        traced, signature, CallSpec(spec[0]), lifted, lambda: trace_graph(model, inputs, functional=True)
    )


def _signature(
    graph: fx.Graph, state: Sequence[str], inputs: Sequence[str], constants: Sequence[str]
) -> ExportGraphSignature:
    """Return what the placeholders of a graph are: constants, then parameters and buffers, then inputs."""
    kinds = [
        *((InputKind.CONSTANT_TENSOR, name) for name in constants),
        *((InputKind.PARAMETER, name) for name in state),
        *((InputKind.USER_INPUT, None) for _ in inputs),
    ]
    places = [node for node in graph.nodes if node.op == "placeholder"]
    results = next(node for node in graph.nodes if node.op == "output").args[0]
    return ExportGraphSignature(
        [
            InputSpec(kind, TensorArgument(node.name), target)
            for node, (kind, target) in zip(places, kinds, strict=True)
        ],
        [OutputSpec(OutputKind.USER_OUTPUT, _argument(value), None) for value in results],
    )


def _argument(value: Any) -> TensorArgument | ConstantArgument:
    return TensorArgument(value.name) if isinstance(value, fx.Node) else ConstantArgument("", value)


def _lift_constants(traced: fx.GraphModule) -> dict[str, torch.Tensor]:
    """Make placeholders of the tensors that the graph makes itself; return their values by name."""
    found: dict[str, torch.Tensor] = {}
    first = next(iter(traced.graph.nodes))
    for node in [node for node in traced.graph.nodes if node.op == "get_attr"]:
        value = getattr(traced, node.target)
        value = getattr(value, "constant", value)
        if not isinstance(value, torch.Tensor):
            raise CaptureError(f"the graph makes a constant, '{node.target}', whose values are not known")
        with traced.graph.inserting_before(first):
            place = traced.graph.placeholder(node.target)
        place.meta = dict(node.meta) | {"val": getattr(traced, node.target)}
        node.replace_all_uses_with(place)
        traced.graph.erase_node(node)
        found[place.name] = value
    return found


def _refuse_modes(model: DynamoGraph) -> None:
    for node in model.graph.nodes:
        if getattr(node.target, "__name__", "") == "_enter_autocast":
            raise CaptureError("forward sets autocast, which cannot be captured")
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise CaptureError(f"the graph calls torch's {node.target.name()}, which cannot be captured")


def _refuse_training(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            names = [argument.name for argument in node.target._schema.arguments]
            given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
            has_own = "running_mean" in given and given["running_mean"] is None  # eval mode uses the input's, too
            if any(given.get(name) is True for name in _TRAINING) and not has_own:
                raise CaptureError(f"{node.target._opname} is in training mode: call .eval() on the model first")


def _refuse_changed_inputs(graph: fx.Graph, inputs: list[fx.Node]) -> None:
    """Check that the graph does not write to the caller's tensors, which a captured network would not do."""
    shared = set(inputs)
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if schema is None or first not in shared:
            continue
        if schema.is_mutable:
            raise CaptureError(f"the model changes its input in place ({node.target._opname})")
        if schema.returns and schema.returns[0].alias_info:
            shared.add(node)
