"""Recording of operators on tensors without data, which needs no import of Dynamo; fake tensors need it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from autotune.core import CaptureError
from fused_resnet.capture.recorder import Recorder

META = torch.device("meta")
_CALLS = {nn.Module._call_impl.__code__, nn.Module._wrapped_call_impl.__code__}
"""Code of nn.Module that calls a forward."""


def meta(one: torch.Tensor) -> torch.Tensor:
    """Return a tensor like another one without data.

    Raises:
        CaptureError: The tensor is of a class of its own, or sparse.
    """
    if type(one) not in (torch.Tensor, nn.Parameter, nn.Buffer) or one.layout is not torch.strided:
        raise CaptureError(f"a tensor is a {type(one).__name__} of the layout {one.layout}")
    return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=META)


class MetaRecorder(Recorder):
    """Records operators on tensors without data as operators on a device; the model stays as it is.

    Args:
        device: The device.
        model: The module whose forward runs; None for a graph, whose nodes know their submodules.
    """

    def __init__(self, device: torch.device, model: nn.Module | None = None) -> None:
        super().__init__()
        self._device = device
        self._stand_ins: dict[int, torch.Tensor] = {}
        self._paths = {id(part): (name, type(part)) for name, part in model.named_modules()} if model else None

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
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        known = _RESULTS.get(func)
        if known and not kwargs and _are_plain(tensors):
            return known(*args)
        if "conv" in func.__name__ and not all(one.is_contiguous() for one in tensors):
            raise CaptureError(f"the order in memory of what {func} makes depends on the device")
        args, kwargs = tree_map(self._on_meta, (args, kwargs))
        value = func(*args, **kwargs)
        if any(isinstance(one, torch.Tensor) and one.device != META for one in tree_leaves(value)):
            raise CaptureError(f"{func} makes a tensor on another device, or one whose values are known")
        return value

    def _on_meta(self, value: Any) -> Any:
        return META if isinstance(value, torch.device) and value == self._device else value

    def submodules(self) -> Mapping[str, Any] | None:
        """Return the innermost submodule whose forward is running, as torch.export notes it."""
        if self._paths is None:
            return self.stack
        frame: FrameType | None = sys._getframe()
        while frame:
            if frame.f_code in _CALLS and (found := self._paths.get(id(frame.f_locals["self"]))):
                return {found[0]: found}
            frame = frame.f_back
        return None


def _are_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors are contiguous and in floating point, of one dtype."""
    first = tensors[0].dtype
    return first.is_floating_point and all(one.dtype == first and one.is_contiguous() for one in tensors)


def _convolved(
    x: torch.Tensor, weight: torch.Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:  # fmt: skip
    if x.shape[1] != weight.shape[1] * groups:
        raise CaptureError(f"conv2d does not take an input of {tuple(x.shape)}")
    return _slid(x, weight.shape[0], weight.shape[2:], stride, padding, dilation)


def _pooled(
    x: torch.Tensor, size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, *rest: Any
) -> torch.Tensor:
    if ceil_mode:
        raise CaptureError("the size of the result is rounded up")
    return _slid(x, x.shape[1], size, stride or size, padding, 1)


def _slid(x: torch.Tensor, channels: int, size: Any, stride: Any, padding: Any, dilation: Any) -> torch.Tensor:
    """Return the result of a window that moves over images."""
    sizes = [_pair(one) for one in (size, stride, padding, dilation)]
    made = [(n + 2 * p - d * (r - 1) - 1) // s + 1 for n, r, s, p, d in zip(x.shape[2:], *sizes, strict=True)]
    if x.dim() != 4 or min(made) < 1:
        raise CaptureError(f"an operator on images does not take an input of {tuple(x.shape)}")
    return torch.empty((x.shape[0], channels, *made), dtype=x.dtype, device=META)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _elementwise(*args: Any) -> torch.Tensor:
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    sizes = zip_longest(*(reversed(one.shape) for one in tensors), fillvalue=1)
    shape = [max(axis) if min(axis) else 0 for axis in sizes][::-1]
    if any(size not in (1, shape[-1 - i]) for one in tensors for i, size in enumerate(reversed(one.shape))):
        raise CaptureError(f"shapes {[tuple(one.shape) for one in tensors]} do not fit together")
    return torch.empty(shape, dtype=tensors[0].dtype, device=META)


def _multiplied(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
    if x.shape[-1] != weight.shape[1]:
        raise CaptureError(f"linear does not take an input of {tuple(x.shape)}")
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=META)


def _averaged(x: torch.Tensor, dim: Sequence[int] | None, keepdim: bool = False) -> torch.Tensor:
    axes = {axis % x.dim() for axis in dim or range(x.dim())}
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape) if keepdim or axis not in axes]
    return torch.empty(shape, dtype=x.dtype, device=META)


_aten = torch.ops.aten
_ELEMENTWISE = (_aten.add, _aten.sub, _aten.mul, _aten.div)
_RESULTS: dict[Any, Callable[..., torch.Tensor]] = {
    _aten.conv2d.default: _convolved,
    _aten.linear.default: _multiplied,
    _aten.avg_pool2d.default: _pooled,
    _aten.mean.dim: _averaged,
    **{one.Tensor: _elementwise for one in _ELEMENTWISE},
    **{one.default: _elementwise for one in (_aten.relu, _aten.sigmoid, _aten.silu, _aten.hardswish)},
}
"""Operators that most networks have, and whose rules for tensors without data import Dynamo or SymPy in torch."""
