"""Constants that are computed from a network's parameters once, when it is bound.

A layer's weight is a key of the state_dict, or a `Derived`: a function's name and what it is computed from. So a
network can fold and rearrange parameters, and stays a plain record that can be compared, printed and sent to another
process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from autotune.core import require_one_of
from autotune.ir.int8_numerics import quantize_weight
from autotune.ir.weight_layout import merge_groups


@dataclass(frozen=True)
class Derived:
    """A tensor computed from others. function: a name in FUNCTIONS; arguments: what it takes after the tensors."""

    function: str
    sources: tuple[Source, ...]
    arguments: tuple[int | float, ...] = ()

    def __post_init__(self) -> None:
        require_one_of("function of constants", self.function, list(FUNCTIONS))


Source = str | Derived
"""Where a constant comes from: a key of the state_dict, or a computation."""


State = Mapping[Any, torch.Tensor]
"""Constants by their sources: a state_dict, or more."""


def tensor(state: State, source: Source) -> torch.Tensor:
    """The constant itself, in the dtype of what it is computed from."""
    if source in state or not isinstance(source, Derived):
        return state[source].detach()
    return FUNCTIONS[source.function](*(tensor(state, part) for part in source.sources), *source.arguments)


def _pool_filter(weight: torch.Tensor, r: int, s: int) -> torch.Tensor:
    """(k, c, 1, 1) after an average over r x s, padding counted -> the one convolution (k, c, r, s) that both are."""
    return (weight / (r * s)).expand(-1, -1, r, s)


def _patch_filter(weight: torch.Tensor, block: int) -> torch.Tensor:
    """(k, block*block*c, 1, 1) on what SpaceToDepth makes -> (k, c, block, block) on the image itself."""
    k, channels = weight.shape[:2]
    return weight.reshape(k, block, block, channels // block**2).permute(0, 3, 1, 2)


def _dense(weight: torch.Tensor, h: int, w: int, pad_h: int, pad_w: int) -> torch.Tensor:
    """(k, c, r, s), stride 1 -> the matrix (p*q*k, h*w*c) by which it multiplies a whole image, channels last."""
    k, c, r, s = weight.shape
    p, q = h + 2 * pad_h - r + 1, w + 2 * pad_w - s + 1
    matrix = weight.new_zeros(p, q, k, h, w, c)
    for y in range(p):
        for x in range(q):
            for dy in range(r):
                for dx in range(s):
                    row, column = y + dy - pad_h, x + dx - pad_w
                    if 0 <= row < h and 0 <= column < w:
                        matrix[y, x, :, row, column] = weight[:, :, dy, dx]
    return matrix.reshape(p * q * k, h * w * c)


def _precise(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _norm_scale(variance: torch.Tensor, *weight_and_epsilon: torch.Tensor | float) -> torch.Tensor:
    """By what a normalisation with these statistics multiplies: weight / sqrt(variance + epsilon)."""
    *weight, epsilon = weight_and_epsilon
    scale = torch.rsqrt(_precise(variance) + epsilon)
    return scale * weight[0] if weight else scale


def _norm_shift(mean: torch.Tensor, scale: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """What it adds after that: bias - mean scale."""
    return (bias[0] if bias else 0) - _precise(mean) * scale


def _scale_rows(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Weights (k, ...) of a layer whose k results are multiplied by `scale`: k numbers, or one."""
    return _precise(weight) * scale.to(weight.device).reshape(-1, *[1] * (weight.dim() - 1))


def _squeeze_filter(weight: torch.Tensor, w1: torch.Tensor, *scale: torch.Tensor) -> torch.Tensor:
    """(k, c, r, s) of a convolution, (hidden, k) by which its result's mean is multiplied -> both: (hidden, c, r, s).

    scale: by what the result is multiplied before its mean is taken: k numbers, or one.
    """
    rows = _precise(w1) * scale[0].to(w1.device).flatten() if scale else _precise(w1)
    # Row by row: nothing else at binding is a matrix product, and the first of all has torch start its library.
    flat = _precise(weight).to(rows.dtype).flatten(1)
    return torch.stack([(row[:, None] * flat).sum(0) for row in rows]).view(len(rows), *weight.shape[1:])


def _squeeze_bias(b1: torch.Tensor, w1: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """The bias of that product where `shift`, k numbers or one, is added to the result before its mean is taken."""
    return _precise(b1) + (_precise(w1) * shift.to(w1.device).flatten()).sum(1)


def _columns_last(weight: torch.Tensor, c: int, h: int, w: int) -> torch.Tensor:
    """(k, c*h*w) for a flattened (c, h, w) -> the same for a flattened (h, w, c)."""
    return weight.reshape(-1, c, h, w).permute(0, 2, 3, 1).flatten(1)


def _pad_inputs(weight: torch.Tensor, c: int) -> torch.Tensor:
    """Weights (k, c', r, s) for an input with c channels, of which those beyond c' are to count nothing."""
    return torch.nn.functional.pad(weight, (0, 0, 0, 0, 0, c - weight.shape[1]))


def _byte_scales(weight: torch.Tensor, factor: float) -> torch.Tensor:
    """By what sums of bytes are multiplied, for each output channel: the weight's scale and a factor."""
    return quantize_weight(weight)[1] * factor


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "concatenate": lambda *tensors: torch.cat(tensors),
    "pool_filter": _pool_filter,
    "patch_filter": _patch_filter,
    "dense": _dense,
    "numbers": lambda *values: torch.tensor(values, dtype=torch.float32),
    "sum": lambda a, b: _precise(a).flatten() + b.to(a.device).flatten(),
    "product": lambda a, b: _precise(a).flatten() * b.to(a.device).flatten(),
    "norm_scale": _norm_scale,
    "norm_shift": _norm_shift,
    "scale_rows": _scale_rows,
    "squeeze_filter": _squeeze_filter,
    "squeeze_bias": _squeeze_bias,
    "as_filter": lambda matrix: matrix[:, :, None, None],
    "tile": lambda tensor, *times: tensor.repeat(*times),
    "columns_last": _columns_last,
    "pad_inputs": _pad_inputs,
    "merge_groups": merge_groups,
    "bytes": lambda weight: quantize_weight(weight)[0],
    "byte_scales": _byte_scales,
}
"""By name: tensors, then numbers -> a tensor."""
