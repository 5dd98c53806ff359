"""The backend of torch.compile(model, backend="autotune"): the graphs of Dynamo on tuned kernels.

pyproject.toml names it in the entry-point group torch_dynamo_backends, so torch finds it without an import.
docs/guide/torch-compile.md describes the options and what runs where.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from autotune.core import AutotuneError, CaptureError, in_one_line
from autotune.ir import BYTE_PRECISIONS, Layer, Network
from autotune.ir.operators import ToChannelsLast, TorchCall
from autotune.runtime.engine import same_objects
from fused_resnet.call import Signature, take_apart
from fused_resnet.compile_options import CompileOptions
from fused_resnet.dynamo_graph import Unlifted, holds, unlift
from fused_resnet.inductor_backend import by_inductor
from fused_resnet.model_source import Captured
from fused_resnet.module import FusedResNet
from fused_resnet.options import TuneLimits
from fused_resnet.torch_op import InputError
from fused_resnet.tuning import compare_step_graph, tune_missing, tune_step
from tuning_db import open_reader, public_keys

if TYPE_CHECKING:
    from fused_resnet.training import StepProblems

LARGEST_FAMILY = 32
"""Most models that share one graph, such as the blocks of one class in a network, and keep their plans."""
KEPT_REPLACED = 1
"""Number of models that keep their plans although they got other parameters, such as averages for an evaluation."""

Compiled = Callable[..., Any]


def autotune(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """Return the callable that runs a graph of Dynamo.

    It runs tuned kernels where the graph can be captured. Otherwise it is Inductor's, or the graph itself where
    Inductor cannot compile, and a warning says why.

    Args:
        graph_module: The graph.
        example_inputs: Dynamo's example of each argument.
        options: Those of torch.compile; see CompileOptions.
        mode: Refused: the modes of torch.compile are Inductor's.

    Raises:
        DatabaseError: The database does not exist or cannot be read.
        InputError: An option or a mode is not supported.
        UnknownNameError: An option has an unknown value.
    """
    if mode is not None:
        raise InputError(f"mode={mode!r} is a mode of Inductor: backend='autotune' takes options={{...}} instead")
    chosen = CompileOptions.of(options)
    tensors = [one for one in example_inputs if isinstance(one, torch.Tensor)]
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        return _training_step(graph_module, example_inputs, chosen)
    try:
        _refuse_others(tensors)
        unlifted = unlift(graph_module, example_inputs)
    except Exception as error:
        return _left("a graph", error, graph_module, example_inputs)
    if not unlifted.module.state_dict():
        return by_inductor(graph_module, example_inputs)  # a piece between graph breaks: nothing to tune
    compiled = CompiledGraph(unlifted, chosen)  # what it raises is about the database
    try:
        network = compiled.network([_concrete(example_inputs[position]) for position in unlifted.inputs])
    except Exception as error:
        return _left("a graph", error, graph_module, example_inputs)
    if all(isinstance(layer.problem, TorchCall | ToChannelsLast) for layer in network.layers):
        return by_inductor(graph_module, example_inputs)
    return compiled


def _training_step(graph_module: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Compiled:
    """Return the callable that runs a graph with gradients: its convolutions on tuned kernels, the rest by Inductor.

    A step that was faster without tuned kernels runs as torch runs it.
    """
    from fused_resnet.training import Winners, compile_step, graph_problems, known_faster_way, on_torch

    try:
        device = _training_device([one for one in example_inputs if isinstance(one, torch.Tensor)], options)
        found = graph_problems(graph_module, example_inputs)
    except Exception as error:
        return _left("a training step", error, graph_module, example_inputs)
    if found is not None and not (found.named or found.others):
        return by_inductor(graph_module, example_inputs)  # a piece between graph breaks
    if found is not None and options.tunes:
        try:
            with torch.inference_mode(False):
                _tune_step(found, graph_module, example_inputs, device, options)
        except AutotuneError as error:  # no compiler, a full disk: the step runs on what there is
            warnings.warn(f"the tune ended early: {error}", stacklevel=2)
    winners = Winners(options.database, options.trusted_keys)
    if found is not None:
        if way := known_faster_way(found, winners, device):
            return on_torch(way, graph_module, example_inputs)
        num_solved = sum(bool(winners.solutions(problem, device)) for problem in found.named.values())
        num_all = len(found.named) + found.others
        if num_solved < num_all:
            warnings.warn(
                f"of the {num_all} convolutions of a training step, gradients counted, {num_solved} run on the kernels "
                f"of {options.database} and the others on torch's: tune them with options={{'tune': 'missing'}} or "
                "`autotune tune --train`, unless torch's are faster",
                stacklevel=3,
            )
    return compile_step(graph_module, example_inputs, winners, device, options.cuda_graphs, options.direct_gradients)


def _tune_step(
    found: StepProblems,
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    device: torch.device,
    options: CompileOptions,
) -> None:
    """Tune the problems of a training step that the database lacks and, on a CPU, compare the step with torch."""
    from fused_resnet.runs import STEP_SHARE

    started, compares = _started(), device.type == "cpu" and bool(found.of_layers)
    where, limits, kept = options.database, options.limits, STEP_SHARE if compares else 0.0
    is_new = tune_step("a training step", found.to_tune(), device, where, limits, started, kept)
    if compares:
        compare_step_graph(graph_module, example_inputs, found.of_layers, where, limits, started, again=is_new)


def _training_device(tensors: Sequence[torch.Tensor], options: CompileOptions) -> torch.device:
    """Return the device of a training step; raises CaptureError for what no step runs with."""
    if options.precision in BYTE_PRECISIONS:
        raise CaptureError(f"precision='{options.precision}' is for inference, and gradients are on")
    (device,) = _devices(tensors)
    return device


class CompiledGraph:
    """Runs a graph of Dynamo for the parameters and inputs that each call passes.

    Args:
        unlifted: The graph as a module.
        options: The user's options.
    """

    def __init__(self, unlifted: Unlifted, options: CompileOptions) -> None:
        self._unlifted, self._options, self._started = unlifted, options, _started()
        self._inputs = _getter(unlifted.inputs)
        self._is_tuple = unlifted.is_tuple
        self._source = Captured(unlifted.module, type(unlifted.module).__name__, options.precision, options.calibration)
        self._bound: dict[int, _Bound] = {}  # by a number, in the order of their first calls
        self._last: _Bound | None = None
        self._numbers = count()
        self._refused: set[tuple[torch.Size, ...]] = set()
        self._lock = threading.Lock()
        with open_reader(options.database, public_keys(options.trusted_keys)):
            pass  # a database that cannot be read raises here rather than at the first call

    def network(self, inputs: Sequence[torch.Tensor]) -> Network:
        """Return the layers for inputs like these, and forget the parameters that Dynamo gave as examples.

        Raises:
            CaptureError: There are no layers for the graph.
            InputError: There are none for such inputs.
        """
        network = _captured(self._source, inputs)
        self._unlifted.forget_states()
        return network

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph.

        One graph may serve several models, so the tensors that are bound as parameters are compared with the call's.
        """
        bound = self._last
        if bound is None or not same_objects(arguments, bound.arguments):
            bound = self._bind(arguments)
        inputs = self._inputs(arguments)
        if self._refused and tuple(x.shape for x in inputs) in self._refused:
            result = bound.network._plain(*inputs)
        else:
            try:
                result = bound.network(*inputs)
            except Exception:  # other shapes of the same graph were captured, or a kernel failed
                if (reason := _refusal(bound.network._source, inputs)) is None:
                    raise
                self._refused.add(tuple(x.shape for x in inputs))
                warnings.warn(f"backend='autotune' runs a graph on torch's operators, because {reason}", stacklevel=2)
                result = bound.network._plain(*inputs)
        return result if self._is_tuple else (result,)

    def _bind(self, arguments: tuple[Any, ...]) -> _Bound:
        """Return the network with these parameters and buffers, and make it the one that is tried first."""
        with self._lock:
            known = list(self._bound.items())
            found = next((one for _, one in known if same_objects(arguments, one.arguments)), None)
            if found is None:
                replaced = [number for number, one in known if one.is_replaced()]
                for number in [*replaced[:-KEPT_REPLACED], *[number for number, _ in known][: 1 - LARGEST_FAMILY]]:
                    self._bound.pop(number, None)
                number = next(self._numbers)
                self._bound[number] = found = self._new(arguments, number)
            self._last = found
            return found

    def _new(self, arguments: tuple[Any, ...], number: int) -> _Bound:
        states, graph = self._unlifted.states.values(), weakref.ref(self)

        def forget(_: object) -> None:  # runs inside any operation of any thread, and so takes no lock
            if (one := graph()) and one._bound.pop(number, None) is one._last:
                one._last = None

        tensors, positions = [arguments[position] for position in states], set(states)
        expected = tuple(one if i in positions else None for i, one in enumerate(arguments))
        network = self._fused(self._source.with_module(self._unlifted.with_states(tensors)))
        models = self._unlifted.owners(tensors, sys._getframe(1))
        return _Bound(expected, network, tuple(weakref.ref(one, forget) for one in models))

    def _fused(self, source: Captured) -> FusedResNet:
        options = self._options
        kind = _TunedAtFirstCall if options.tunes else FusedResNet
        fused = kind(
            options.database,
            source,
            cuda_graphs=options.cuda_graphs,
            max_plans=options.max_plans,
            memory_format=options.memory_format,
            trusted_keys=options.trusted_keys,
            compile=options.compile,
        )
        if isinstance(fused, _TunedAtFirstCall):
            fused.limits, fused.started = options.limits, self._started
        return fused


class _TunedAtFirstCall(FusedResNet):
    """A FusedResNet that tunes what the database lacks before it binds a plan."""

    limits = TuneLimits()
    started: float | None = None

    def _before_binding(self, network: Network, converting: Sequence[Layer], device: torch.device) -> None:
        started, self.started = self.started, None  # the time before the first call belongs to its budget alone
        try:
            with torch.inference_mode(False):
                tune_missing(network, device, self.tuning_db, self.limits, started, converting)
        except AutotuneError as error:  # no compiler, a full disk: the model runs on what there is
            warnings.warn(f"the tune ended early: {error}", stacklevel=2)


@dataclass(frozen=True)
class _Bound:
    """The parameters and buffers of one model, and the network that runs with them.

    Attributes:
        arguments: The arguments of the graph that are parameters or buffers, and None for the others.
        network: The network.
        models: The user's modules that held them at the first call; none if they were not found. The end of one of them
            ends this record. The tensors themselves get no weak references, because torch.utils.swap_tensors refuses
            tensors that have any.
    """

    arguments: tuple[torch.Tensor | None, ...]
    network: FusedResNet
    models: tuple[weakref.ref[nn.Module], ...]

    def is_replaced(self) -> bool:
        """Return whether the user's modules hold other tensors now."""
        models = [model for one in self.models if (model := one()) is not None]
        return bool(models) and not holds(models, [one for one in self.arguments if one is not None])


def _started() -> float:
    """Return the time.monotonic() at which Dynamo began to compile, from which a budget counts; else that of now."""
    context = getattr(torch._dynamo.utils, "get_metrics_context", lambda: None)()
    began = getattr(context, "_start_time_ns", None)
    return time.monotonic() - (max(0, time.time_ns() - began) / 1e9 if began else 0.0)


def _captured(source: Captured, inputs: Sequence[torch.Tensor]) -> Network:
    """Return the layers for inputs like these; raises CaptureError or InputError if there are none."""
    if not inputs:
        raise CaptureError("the graph has no input")
    if len(dtypes := {one.dtype for one in inputs if one.is_floating_point()}) > 1:
        raise CaptureError(f"its inputs are in several dtypes: {', '.join(sorted(map(str, dtypes)))}")
    arguments, tensors = take_apart((), inputs, {})
    return source.network(Signature.of(tensors, arguments))


def _refusal(source: Captured, inputs: Sequence[torch.Tensor]) -> str | None:
    """Return why there are no layers for inputs like these; None if there are."""
    try:
        _captured(source, inputs)
    except Exception as error:
        return in_one_line(error)
    return None


def _getter(positions: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function that takes the items at some positions."""
    if len(positions) > 1:
        return itemgetter(*positions)
    if not positions:
        return lambda _: ()
    (position,) = positions
    return itemgetter(slice(position, position + 1))


def _devices(tensors: Sequence[torch.Tensor]) -> set[torch.device]:
    """Return the device of some tensors, none for no tensors; raises CaptureError if there are several."""
    if len(devices := {one.device for one in tensors}) > 1:
        raise CaptureError(f"its tensors are on several devices: {', '.join(sorted(map(str, devices)))}")
    return devices


def _refuse_others(tensors: Sequence[torch.Tensor]) -> None:
    """Raise CaptureError for tensors or modes that no network runs with."""
    if any(torch.is_autocast_enabled(device.type) for device in _devices(tensors)):
        raise CaptureError("autocast is on: convert the model instead, with .half() or .to(torch.bfloat16)")
    if kinds := {type(one).__name__ for one in tensors} - {"Tensor", "Parameter", "FakeTensor"}:
        raise CaptureError(f"its tensors are of the class {', '.join(sorted(kinds))}")


def _concrete(example: torch.Tensor) -> torch.Tensor:
    """Return a tensor without memory whose shape is the example's; its sizes are hints, and nothing is guarded."""
    sizes = [size.node.hint if isinstance(size, torch.SymInt) else size for size in example.shape]
    if None in sizes:
        raise CaptureError("a size depends on the values of tensors")
    return torch.empty(sizes, dtype=example.dtype, device="meta")


def _left(what: str, error: Exception, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """Return Inductor's callable for a graph because of an error, which may be of any kind: the graph is a user's."""
    from torch._dynamo.exc import RestartAnalysis

    if isinstance(error, RestartAnalysis):
        raise error  # a request to Dynamo
    warnings.warn(f"backend='autotune' leaves {what} to Inductor, because {in_one_line(error)}", stacklevel=3)
    return by_inductor(graph_module, example_inputs)
