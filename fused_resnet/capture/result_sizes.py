"""The sizes of what operators return for tensors without data.

Torch knows these, too, but for most operators of a CNN its rules are in Python and import Dynamo or SymPy, which takes
seconds. Those operators have rules here, for tensors in floating point that are contiguous or channels last. Torch's
rules serve for all others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from autotune.core import CaptureError

META = torch.device("meta")
_aten = torch.ops.aten


def without_data(one: torch.Tensor) -> torch.Tensor:
    """Return a tensor without data that has the shape, strides and dtype of another one."""
    return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=META)


def result(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of an operator on tensors without data.

    Raises:
        CaptureError: The operator does not take such tensors, or the order of its result in memory is not known.
    """
    rule, tensors = _RULES.get(func), [one for one in tree_leaves(args) if isinstance(one, torch.Tensor)]
    order = _order(tensors, is_convolution=rule in (_conv2d, _conv_transpose2d))
    if rule in (_mean, _linear) and order is torch.channels_last:
        order = None  # axes of size 1 have other strides; rows of a product of matrices lie one after another
    if rule is None or kwargs or order is None or len({one.dtype for one in tensors}) > 1:
        if "conv" in str(func) and not all(map(_is_only_contiguous, tensors)):
            raise CaptureError(f"the order in memory of what {func} makes depends on the device")
        return func(*args, **kwargs)
    made = rule(*args)
    if order is torch.contiguous_format or made.dim() != 4 or any(made is one for one in args):
        return made
    return torch.empty(made.shape, dtype=made.dtype, device=META, memory_format=order)


def _order(tensors: Sequence[torch.Tensor], *, is_convolution: bool) -> torch.memory_format | None:
    """Return the memory format of an operator's result: that of its arguments; None if they have several or another.

    A convolution copies its arguments to the memory format of its result: channels last if torch calls the input or the
    weight so. Integers have none.
    """
    if not tensors or not tensors[0].dtype.is_floating_point:
        return None
    if is_convolution and all(one.dim() == 4 for one in tensors[:2]):
        is_last = any(map(_has_strides_of_channels_last, tensors[:2]))
        return torch.channels_last if is_last else torch.contiguous_format
    last = [one for one in tensors if one.dim() == 4 and one.is_contiguous(memory_format=torch.channels_last)]
    others = [one for one in tensors if not any(one is known for known in last)]
    if all(one.is_contiguous() for one in tensors):
        return torch.contiguous_format
    return torch.channels_last if all(one.is_contiguous() and one.dim() != 4 for one in others) else None


def _is_only_contiguous(x: torch.Tensor) -> bool:
    return x.is_contiguous() and not (x.dim() == 4 and _has_strides_of_channels_last(x))


def _has_strides_of_channels_last(x: torch.Tensor) -> bool:
    """Return whether torch calls x channels last: Tensor::suggest_memory_format, which is not in Python."""
    least, of_channels = 0, x.stride(1)
    for axis in (1, 3, 2, 0):
        if not x.shape[axis] or x.stride(axis) < least or (axis == 0 and least == of_channels):
            return False
        least = x.stride(axis) * x.shape[axis]
    return of_channels > 0


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


def _conv_transpose2d(
    x: torch.Tensor, weight: torch.Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> torch.Tensor:  # fmt: skip
    k = weight.shape[1] * groups
    sizes = [_pair(one) for one in (weight.shape[2:], stride, padding, output_padding, dilation)]
    made = [(n - 1) * s - 2 * p + d * (r - 1) + e + 1 for n, r, s, p, e, d in zip(x.shape[2:], *sizes, strict=True)]
    is_wrong = x.dim() != 4 or x.shape[1] != weight.shape[0] or x.shape[1] % groups or min(made) < 1
    if is_wrong or (bias is not None and bias.shape != (k,)) or any(map(operator.ge, sizes[3], sizes[1])):
        raise CaptureError(f"conv_transpose2d does not take an input of {tuple(x.shape)}")
    return _made(x, x.shape[0], k, *made)


def _avg_pool2d(
    x: torch.Tensor, size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, *_: Any
) -> torch.Tensor:
    return _pool2d(x, size, stride, padding, 1, ceil_mode)


def _pool2d(
    x: torch.Tensor, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> torch.Tensor:
    if any(2 * p > r for p, r in zip(_pair(padding), _pair(size), strict=True)):
        raise CaptureError("this pool is left to torch.export")
    return _window(x, x.shape[1], size, stride or size, padding, dilation, ceil_mode)


def _window(
    x: torch.Tensor, channels: int, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool = False
) -> torch.Tensor:
    """Return the result of a window that moves over images; by ceil_mode the last one may end behind the padding."""
    sizes = [_pair(one) for one in (size, stride, padding, dilation)]
    made = []
    for n, r, s, p, d in zip(x.shape[2:], *sizes, strict=True):
        steps = (n + 2 * p - d * (r - 1) - 1 + ceil_mode * (s - 1)) // s
        made.append(steps + 1 - (ceil_mode and steps * s >= n + p))  # each window begins before the right padding
    if x.dim() != 4 or min(made) < 1:
        raise CaptureError(f"an operator on images does not take an input of {tuple(x.shape)}")
    return _made(x, x.shape[0], channels, *made)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _adaptive_avg_pool2d(x: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return _made(x, *x.shape[:-2], *size)


def _batch_norm(x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *_: Any) -> Any:
    is_wrong = training and mean is not None  # in eval mode without statistics, the input's own are used
    if is_wrong or any(one is not None and one.shape != x.shape[1:2] for one in (weight, bias, mean, variance)):
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
    _aten.conv_transpose2d.input: _conv_transpose2d,
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
