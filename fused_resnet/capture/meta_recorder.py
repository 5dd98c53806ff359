"""Recording of operators on tensors without data, which needs no import of Dynamo; fake tensors need it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from autotune.core import CaptureError
from fused_resnet.capture.recorder import Recorder
from fused_resnet.capture.result_sizes import META, result, without_data

_CALLS = {nn.Module._call_impl.__code__, nn.Module._wrapped_call_impl.__code__}
"""Code of nn.Module that calls a forward."""


def meta(one: torch.Tensor) -> torch.Tensor:
    """Return a tensor like another one without data.

    Raises:
        CaptureError: The tensor is of a class of its own, or sparse.
    """
    if type(one) not in (torch.Tensor, nn.Parameter, nn.Buffer) or one.layout is not torch.strided:
        raise CaptureError(f"a tensor is a {type(one).__name__} of the layout {one.layout}")
    return without_data(one)


class MetaRecorder(Recorder):
    """Records operators on tensors without data as operators on a device; the model stays as it is.

    Args:
        device: The device.
        model: The module whose forward runs.
    """

    def __init__(self, device: torch.device, model: nn.Module) -> None:
        super().__init__()
        self._device = device
        self._stand_ins: dict[int, torch.Tensor] = {}
        self._paths = {id(part): (name, type(part)) for name, part in model.named_modules()}

    def stand_in(self, name: str, value: torch.Tensor) -> None:
        """Make a placeholder of a tensor of the model; operators take a tensor without data in its place."""
        self._stand_ins[id(value)] = meta(value)
        self.placeholder(name, self._stand_ins[id(value)])

    def replaced(self, value: Any) -> Any:
        """Return what stands for a value: a tensor without data for one of the model, any other as it is."""
        return self._stand_ins.get(id(value), value) if isinstance(value, torch.Tensor) else value

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map(self.replaced, (args, kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operator as a tensor without data.

        Raises:
            CaptureError: The result is on another device, has values, or has an order in memory that is not known.
        """
        if func is torch.ops.aten.lift_fresh_copy.default:
            return meta(args[0])
        args, kwargs = tree_map(self._on_meta, (args, kwargs))
        value = result(func, args, kwargs)
        if any(isinstance(one, torch.Tensor) and one.device != META for one in tree_leaves(value)):
            raise CaptureError(f"{func} makes a tensor on another device, or one whose values are known")
        return value

    def _on_meta(self, value: Any) -> Any:
        return META if isinstance(value, torch.device) and value == self._device else value

    def submodules(self) -> Mapping[str, Any] | None:
        """Return the innermost submodule whose forward is running, as torch.export notes it."""
        frame: FrameType | None = sys._getframe()
        while frame:
            if frame.f_code in _CALLS and (found := self._paths.get(id(frame.f_locals["self"]))):
                return {found[0]: found}
            frame = frame.f_back
        return None
