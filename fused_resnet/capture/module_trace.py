"""Tracing of a module by calling it on tensors without data.

The first use of torch.export imports Dynamo, which takes seconds. Most modules need neither. What cannot be traced here
with certainty is left to torch.export.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from autotune.core import CaptureError
from fused_resnet.call import put_together
from fused_resnet.capture.as_operators import AsOperators
from fused_resnet.capture.graph_trace import TracedGraph, traced
from fused_resnet.capture.meta_recorder import MetaRecorder, meta

_LEAVES = (torch.Tensor, bool, int, float, str, type(None))
"""Types of the values that a forward may return, alone or in containers."""


def trace_module(
    model: nn.Module, arguments: str, inputs: Sequence[torch.Tensor], names: Sequence[str], device: torch.device
) -> TracedGraph:
    """Trace a module for inputs like these.

    Args:
        model: The module, in eval mode.
        arguments: The text of the arguments; it has tensors alone, by position.
        inputs: Tensors with the shape, dtype and strides of the inputs.
        names: Names of forward's parameters that can be given by position.
        device: The device of the module and the inputs.

    Raises:
        CaptureError: The arguments or the results have another structure; forward asks for the values of tensors,
            mixes devices, uses autocast or changes its inputs.
        Exception: Forward fails on tensors without data.
    """
    recorder = MetaRecorder(device, model)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.inference_mode(False):  # a view of a parameter has a version, and so must have what stands for it
        args, kwargs = put_together(arguments, [meta(one) for one in inputs])
        names = names[: len(args)]
        if kwargs or len(names) < len(args) or not all(isinstance(one, torch.Tensor) for one in args) or "" in names:
            raise CaptureError("the arguments are not tensors by position alone")
        for i, tensor in enumerate(state.values()):
            recorder.stand_in(f"arg{i}", tensor)
        for i, tensor in enumerate(args, len(state)):
            recorder.placeholder(f"arg{i}", tensor)
    with torch.inference_mode(), AsOperators(), _OnDevice(device), recorder:
        result = tree_map(recorder.replaced, model(*args))
    if not all(isinstance(leaf, _LEAVES) for leaf in tree_leaves(result)):
        raise CaptureError("a result is neither a tensor nor a constant")
    return traced(recorder, result, list(state), names, can_be_decomposed=False)


class ControlFlowError(CaptureError):
    """Forward has control flow by an operator of torch that takes functions, such as torch.cond."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"calls torch's {name}: a forward with control flow that depends on values of tensors, or with autocast of "
            "its own, cannot be captured: move that part out of the model, or use "
            "torch.compile(model, backend='autotune'), which runs such parts without our kernels"
        )


class _OnDevice(TorchFunctionMode):
    """Lets tensors without data say that they are on a device.

    Raises:
        CaptureError: Forward uses autocast, or asks for an address.
        ControlFlowError: Forward calls an operator that takes functions.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._answers: dict[Any, Callable[[], Any]] = {
            torch.Tensor.device.__get__: lambda: device,
            torch.Tensor.is_cuda.__get__: lambda: device.type == "cuda",  # type: ignore[attr-defined]
            torch.Tensor.is_cpu.__get__: lambda: device.type == "cpu",  # type: ignore[attr-defined]
            torch.Tensor.is_meta.__get__: lambda: False,  # type: ignore[attr-defined]
            torch.Tensor.get_device: lambda: -1 if device.type == "cpu" else device.index,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if isinstance(func, torch._ops.HigherOrderOperator):
            raise ControlFlowError(func.name())
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise CaptureError("forward uses autocast")
        if func in (torch.Tensor.data_ptr, torch.Tensor.type):
            raise CaptureError(f"forward calls {func.__name__}()")
        answer = self._answers.get(func)
        return answer() if answer else func(*args, **(kwargs or {}))
