"""The sizes of what operators return for tensors without data.

Torch knows these, too, but for most operators of a CNN its rules are in Python and import Dynamo or SymPy, which takes
seconds. Those operators have rules here, for contiguous tensors in floating point; torch's serve for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from autotune.core import CaptureError

META = torch.device("meta")
_aten = torch.ops.aten


def result(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of an operator on tensors without data.

    Raises:
        CaptureError: The operator does not take such tensors.
    """
    rule = _RULES.get(func)
    if rule and not kwargs and _are_plain(args):
        return rule(*args)
    return func(*args, **kwargs)


def _are_plain(args: Sequence[Any]) -> bool:
    """Return whether the tensors among some arguments are contiguous and in floating point, of one dtype."""
    tensors = [one for one in tree_leaves(args) if isinstance(one, torch.Tensor)]
    first = tensors[0].dtype if tensors else torch.int64
    return first.is_floating_point and all(one.dtype == first and one.is_contiguous() for one in tensors)


def _made(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=like.dtype, device=META)


def _conv2d(
    x: torch.Tensor, weight: torch.Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:  # fmt: skip
    k = weight.shape[0]
    if x.shape[1] != weight.shape[1] * groups or k % groups or (bias is not None and bias.shape != (k,)):
        raise CaptureError(f"conv2d does not take an input of {tuple(x.shape)}")
    return _window(x, k, weight.shape[2:], stride, padding, dilation)


def _avg_pool2d(
    x: torch.Tensor, size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, *_: Any
) -> torch.Tensor:
    return _pool2d(x, size, stride, padding, 1, ceil_mode)


def _pool2d(
    x: torch.Tensor, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> torch.Tensor:
    if ceil_mode or any(2 * p > r for p, r in zip(_pair(padding), _pair(size), strict=True)):
        raise CaptureError("this pool is left to torch.export")
    return _window(x, x.shape[1], size, stride or size, padding, dilation)


def _window(x: torch.Tensor, channels: int, size: Any, stride: Any, padding: Any, dilation: Any) -> torch.Tensor:
    """Return the result of a window that moves over images."""
    sizes = [_pair(one) for one in (size, stride, padding, dilation)]
    made = [(n + 2 * p - d * (r - 1) - 1) // s + 1 for n, r, s, p, d in zip(x.shape[2:], *sizes, strict=True)]
    if x.dim() != 4 or min(made) < 1:
        raise CaptureError(f"an operator on images does not take an input of {tuple(x.shape)}")
    return _made(x, x.shape[0], channels, *made)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _adaptive_avg_pool2d(x: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return _made(x, *x.shape[:-2], *size)


def _batch_norm(x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *_: Any) -> Any:
    if training or any(one is not None and one.shape != x.shape[1:2] for one in (weight, bias, mean, variance)):
        raise CaptureError(f"batch_norm does not take an input of {tuple(x.shape)}")
    return _made(x, *x.shape)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
    if x.shape[-1] != weight.shape[1] or (bias is not None and bias.shape != weight.shape[:1]):
        raise CaptureError(f"linear does not take an input of {tuple(x.shape)}")
    return _made(x, *x.shape[:-1], weight.shape[0])


def _mean(x: torch.Tensor, dim: Sequence[int] | None, keepdim: bool = False) -> torch.Tensor:
    axes = {range(x.dim())[axis] for axis in dim or range(x.dim())}
    return _made(x, *(1 if axis in axes else n for axis, n in enumerate(x.shape) if keepdim or axis not in axes))


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    first = tensors[0]
    axis = range(first.dim())[dim]
    if len({(*one.shape[:axis], *one.shape[axis + 1 :]) for one in tensors}) > 1:
        raise CaptureError(f"cat does not take tensors of {[tuple(one.shape) for one in tensors]}")
    return _made(first, *first.shape[:axis], sum(one.shape[axis] for one in tensors), *first.shape[axis + 1 :])


def _elementwise(*args: Any) -> torch.Tensor:
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    sizes = zip_longest(*(reversed(one.shape) for one in tensors), fillvalue=1)
    shape = [max(axis) if min(axis) else 0 for axis in sizes][::-1]
    if any(size not in (1, shape[-1 - i]) for one in tensors for i, size in enumerate(reversed(one.shape))):
        raise CaptureError(f"shapes {[tuple(one.shape) for one in tensors]} do not fit together")
    return _made(tensors[0], *shape)


def _in_place(x: torch.Tensor, *others: Any) -> torch.Tensor:
    if any(isinstance(one, torch.Tensor) and one.shape != x.shape for one in others):
        raise CaptureError("this change in place is left to torch.export")
    return x


_RULES: dict[Any, Callable[..., torch.Tensor]] = {
    _aten.conv2d.default: _conv2d,
    _aten.linear.default: _linear,
    _aten.batch_norm.default: _batch_norm,
    _aten.avg_pool2d.default: _avg_pool2d,
    _aten.max_pool2d.default: _pool2d,
    _aten.adaptive_avg_pool2d.default: _adaptive_avg_pool2d,
    _aten.mean.dim: _mean,
    _aten.cat.default: _cat,
    **{one.Tensor: _elementwise for one in (_aten.add, _aten.sub, _aten.mul, _aten.div)},
    **{one.default: _elementwise for one in (_aten.relu, _aten.sigmoid, _aten.silu, _aten.hardswish, _aten.relu6)},
    **{one.default: _elementwise for one in (_aten.hardsigmoid, _aten.hardtanh, _aten.gelu, _aten.tanh)},
    **{one.default: _in_place for one in (_aten.relu_, _aten.silu_, _aten.hardswish_, _aten.relu6_, _aten.hardtanh_)},
    **{one.Tensor: _in_place for one in (_aten.add_, _aten.mul_)},
}
