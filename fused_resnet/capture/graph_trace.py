"""Tracing of a DynamoGraph: it is a graph already, so each node is executed once on fake tensors.

That takes half the time of torch.export, which would also lose the submodules that the nodes come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves

from autotune.core import CaptureError, in_one_line
from fused_resnet.capture.as_operators import AsOperators
from fused_resnet.capture.nodes import memory, name_of, written
from fused_resnet.capture.recorder import Recorder
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
        can_be_decomposed: Whether torch can replace changes in place.
    """

    graph_module: fx.GraphModule
    graph_signature: ExportGraphSignature
    call_spec: CallSpec
    constants: Mapping[str, torch.Tensor]
    can_be_decomposed: bool = True

    @property
    def graph(self) -> fx.Graph:
        """The graph of aten operators."""
        return self.graph_module.graph

    def run_decompositions(self, parts: Mapping[Any, Callable[..., Any]]) -> TracedGraph:
        """Return the graph without changes in place; composite operators are replaced by their parts.

        Args:
            parts: Functions that run the parts of operators which torch does not replace itself.
        """
        recorder = Recorder()

        def run(*given: torch.Tensor) -> list[Any]:
            return tree_leaves(_Interpreter(self.graph_module, recorder, parts=parts).run(*given))

        places = [node for node in self.graph.nodes if node.op == "placeholder"]
        with FakeTensorMode(), torch.no_grad():
            fakes = [_fake(node.meta["val"]) for node in places]
            for node, fake in zip(places, fakes, strict=True):
                recorder.placeholder(node.name, fake)
            with recorder:
                leaves = torch.func.functionalize(run)(*fakes)
        recorder.graph.output(tuple(map(recorder.node, leaves)))
        results = next(iter(reversed(recorder.graph.nodes))).args[0]
        signature = ExportGraphSignature(self.graph_signature.input_specs, _outputs(results))
        return replace(self, graph_module=fx.GraphModule(nn.Module(), recorder.graph), graph_signature=signature)


class _Interpreter(fx.Interpreter):
    """Runs a graph node by node, so that each operator is recorded with the submodule of its node.

    Args:
        module: The graph.
        recorder: Records the operators.
        states: The tensor in place of each parameter and buffer of the module, by the id of the latter.
        parts: What runs in place of some functions.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        recorder: Recorder,
        states: Mapping[int, torch.Tensor] | None = None,
        parts: Mapping[Any, Callable[..., Any]] | None = None,
    ) -> None:
        super().__init__(module)
        self._recorder, self._states, self._parts = recorder, states or {}, parts or {}

    def run_node(self, n: fx.Node) -> Any:
        self._recorder.stack = n.meta.get("nn_module_stack")
        return super().run_node(n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return self._states.get(id(value), value)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(self._parts.get(target, target), args, kwargs)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.fetch_attr(target)
        tensors = [*module.named_parameters(), *module.named_buffers()]
        return torch.func.functional_call(module, {name: self._states[id(one)] for name, one in tensors}, args, kwargs)


def trace_graph(model: DynamoGraph, inputs: tuple[torch.Tensor, ...]) -> TracedGraph:
    """Trace a graph of torch-level operators for inputs like these.

    Args:
        model: The graph.
        inputs: Tensors with the shape, dtype and device of the inputs.

    Raises:
        CaptureError: The graph changes its inputs, is in training mode, sets autocast, or needs the
            values of tensors.
    """
    _refuse_modes(model)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    recorder = Recorder()
    with FakeTensorMode(), torch.inference_mode():
        fakes, given = ([_fake(one) for one in each] for each in (state.values(), inputs))
        for i, fake in enumerate([*fakes, *given]):
            recorder.placeholder(f"arg{i}", fake)
        states = {id(value): fake for value, fake in zip(state.values(), fakes, strict=True)}
        try:
            with AsOperators(), recorder:
                result = _Interpreter(model, recorder, states).run(*given)
            names = [node.name for node in model.graph.nodes if node.op == "placeholder"]
            return traced(recorder, result, list(state), names)
        except CaptureError:
            raise
        except Exception as error:  # a graph may call anything of torch
            raise CaptureError(f"the graph cannot be traced: {in_one_line(error)}") from error


def traced(
    recorder: Recorder, result: Any, state: Sequence[str], inputs: Sequence[str], *, can_be_decomposed: bool = True
) -> TracedGraph:
    """Return a recorded program, whose placeholders so far are constants, the state and the inputs.

    Args:
        recorder: The recorded operators.
        result: What the program returns.
        state: Names of the parameters and buffers.
        inputs: Names of the inputs.
        can_be_decomposed: That of the result.

    Raises:
        CaptureError: The program changes its inputs, is in training mode, or needs the values of tensors.
    """
    leaves, structure = tree_flatten(result)
    graph = recorder.graph
    graph.output(tuple(map(recorder.node, leaves)))
    places = [node for node in graph.nodes if node.op == "placeholder"][len(recorder.constants) + len(state) :]
    named = dict(zip(places, inputs, strict=True))
    for node in graph.nodes:
        if node not in named and node.name in inputs:  # an operator has the name of an input
            node.name = graph._graph_namespace.create_name(node.name, None)
    for node, name in named.items():
        node.name = node.target = name  # the names of buffers are part of the network's identity
    _refuse_training(graph)
    _refuse_changed_inputs(graph, places)
    signature = _signature(graph, state, inputs, list(recorder.constants))
    graph_module = fx.GraphModule(nn.Module(), graph)
    return TracedGraph(graph_module, signature, CallSpec(structure), recorder.constants, can_be_decomposed)


def _fake(one: torch.Tensor) -> torch.Tensor:
    """Return a tensor like another one; a fake tensor where the mode is active."""
    return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)


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
        _outputs(results),
    )


def _outputs(results: Sequence[Any]) -> list[OutputSpec]:
    return [OutputSpec(OutputKind.USER_OUTPUT, _argument(value), None) for value in results]


def _argument(value: Any) -> TensorArgument | ConstantArgument:
    return TensorArgument(value.name) if isinstance(value, fx.Node) else ConstantArgument("", value)


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


def _refuse_changed_inputs(graph: fx.Graph, inputs: Sequence[fx.Node]) -> None:
    """Check that the graph does not write to the caller's tensors, which a captured network would not do."""
    of_caller = set().union(*map(memory, inputs))
    for node in graph.nodes:
        if any(memory(target) & of_caller for target in written(node)):
            raise CaptureError(f"the model changes its input in place ({name_of(node)})")
