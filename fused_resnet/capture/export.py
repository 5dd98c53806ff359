"""Export: a module -> torch.export's program of aten operators, for one signature.

If torch.export fails, it gets the result of torch.fx's tracer.
"""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental import proxy_tensor

from autotune.core import CaptureError, in_one_line
from autotune.ir import TENSOR_DTYPES
from fused_resnet.call import Signature, positions, put_together
from fused_resnet.capture.as_operators import AsOperators
from fused_resnet.capture.graph_trace import TracedGraph, trace_graph
from fused_resnet.capture.in_place import forget_tensors
from fused_resnet.capture.module_trace import ControlFlowError, trace_module
from fused_resnet.capture.side_effects import undone
from fused_resnet.capture.stateless import stateless
from fused_resnet.dynamo_graph import DynamoGraph

tracing: ContextVar[bool] = ContextVar("tracing", default=False)
"""True while a module is being traced; an `Activation` is one operation then."""

_UNTRACED = "fake tensor in the exported program constant's list"
"""Part of the message of torch.export about a tensor that no operator made."""


def check(model: nn.Module) -> tuple[torch.device, torch.dtype | None]:
    """Return the device and dtype of a module's floating-point tensors; dtype None if it has none.

    Raises:
        CaptureError: A submodule is in training mode, or the tensors have several dtypes or devices.
    """
    for name, module in model.named_modules():
        if module.training:
            raise CaptureError(f"{_called(name, module)} is in training mode: call .eval() on the model first")
    tensors = [*model.named_parameters(), *model.named_buffers()]
    kinds = {name: (tensor.device, tensor.dtype) for name, tensor in tensors if tensor.is_floating_point()}
    if not kinds:
        return torch.device("cpu"), None
    first, kind = next(iter(kinds.items()))
    for name, (device, dtype) in kinds.items():
        if (device, dtype) != kind:
            raise CaptureError(
                f"{name} is {dtype} on {device}, and {first} is {kind[1]} on {kind[0]}: "
                "convert the whole model with .to()"
            )
    return kind


def export(
    model: nn.Module,
    signature: Signature,
    device: torch.device,
    memory_format: torch.memory_format = torch.contiguous_format,
    *,
    by_calling: bool = True,
) -> torch.export.ExportedProgram | TracedGraph:
    """Trace a module on inputs of which those with four dimensions have a memory format.

    Args:
        model: The module.
        signature: The arguments of the call.
        device: The device of the inputs.
        memory_format: The memory format.
        by_calling: Whether to try module_trace.py before torch.export.

    Raises:
        CaptureError: The module cannot be traced; the message names the submodule.
    """
    tensors = [torch.empty(one.shape, dtype=TENSOR_DTYPES[one.dtype], device=device) for one in signature.tensors]
    tensors = [one.contiguous(memory_format=memory_format) if one.dim() == 4 else one for one in tensors]
    if isinstance(model, DynamoGraph):
        return trace_graph(model, tuple(tensors))  # Dynamo guards the state that forward reads
    if any(tensor.is_inference() for tensor in (*model.parameters(), *model.buffers())):
        model = copy.deepcopy(model)  # tensors made in inference mode, for example by .half(), cannot be exported
    args, kwargs = put_together(signature.arguments, tensors)

    def traced() -> torch.export.ExportedProgram | TracedGraph:
        if by_calling:
            try:
                return trace_module(model, signature.arguments, tensors, positions(model), device)
            except ControlFlowError as error:
                raise CaptureError(f"{_innermost(model, error.__traceback__)[0] or 'the model'} {error}") from error
            except Exception:  # forward may do anything on tensors without data
                pass
        with AsOperators():
            try:
                return torch.export.export(model, args, kwargs, strict=False)
            except CaptureError as error:  # torch.fx does not see what AsOperators refuses
                raise _failure(model, signature, error) from error
            except Exception as error:  # includes errors of the model's own code
                try:
                    return torch.export.export(fx.symbolic_trace(model), args, kwargs, strict=False)
                except Exception:
                    raise _failure(model, signature, error) from error

    def call() -> None:
        given = [torch.randn_like(one) if one.is_floating_point() else torch.zeros_like(one) for one in tensors]
        positional, named = put_together(signature.arguments, given)
        model(*positional, **named)

    token = tracing.set(True)
    try:
        with warnings.catch_warnings(), torch.no_grad(), _own_export_state(), undone(model):
            warnings.simplefilter("ignore")
            program = stateless(model, traced, call)
            forget_tensors(program)
            return program
    finally:
        tracing.reset(token)


@contextmanager
def _own_export_state() -> Iterator[None]:
    """Keep the state of an export in progress: a FusedResNet that is exported captures its module meanwhile."""
    state = sys.modules.get("torch.export._trace")  # absent before the first export
    names = ("_EXPORT_FLAGS", "_EXPORT_MODULE_HIERARCHY")
    outer = {name: getattr(state, name) for name in names if hasattr(state, name)}
    nodes: dict[Any, Any] = getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {})  # of newer torch
    outer_nodes = dict(nodes)
    try:
        for name in outer:
            setattr(state, name, None)
        yield
    finally:
        for name, value in outer.items():
            setattr(state, name, value)
        nodes.clear()
        nodes.update(outer_nodes)


def _failure(model: nn.Module, signature: Signature, error: Exception) -> CaptureError:
    where = _called(*_innermost(model, error.__traceback__))
    if isinstance(error, CaptureError):
        return CaptureError(f"{where}: {error}")
    if (unknown := re.search(r"Found <class '([\w.<>]+)'> in output", str(error))) is not None:
        return CaptureError(
            f"the model ({type(model).__name__}) returns a {unknown[1]}: return tensors, numbers, texts, and tuples, "
            "lists and dictionaries of these, or register a dataclass by torch.export.register_dataclass"
        )
    if _UNTRACED in str(error):
        return CaptureError(
            f"{where} makes a tensor without an operator of torch, whose values are not known: compute it by operators "
            "from the inputs, parameters and buffers"
        )
    return CaptureError(
        f"{where} cannot be traced for {signature}: {in_one_line(error)}. "
        "Its forward must take such inputs, and its control flow may depend on shapes only, not on values of tensors"
    )


def _innermost(model: nn.Module, frames: TracebackType | None) -> tuple[str, nn.Module]:
    """Return the innermost submodule whose method an exception passed through, and its path."""
    paths = {id(module): (name, module) for name, module in model.named_modules()}
    found = ("", model)
    while frames:
        found = paths.get(id(frames.tb_frame.f_locals.get("self")), found)
        frames = frames.tb_next
    return found


def _called(name: str, module: nn.Module) -> str:
    return f"{name} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
