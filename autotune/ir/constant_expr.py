"""Constants that are computed from a network's parameters once, when the network is bound.

A layer's weight is a key of the state_dict, or a `ConstantExpr`: the name of a function and the constants to which it
is applied. So a network can fold and rearrange parameters and remains a plain record that can be compared, printed and
sent to another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from autotune.core import require_one_of
from autotune.ir.byte_formats import BYTE_FORMATS, ByteFormat
from autotune.ir.weight_layout import merge_groups


@dataclass(frozen=True)
class ConstantExpr:
    """A constant that a function computes from others.

    Attributes:
        function: A name in FUNCTIONS.
        sources: The constants to which it is applied.
        arguments: Numbers that follow the constants in the call.
    """

    function: str
    sources: tuple[ConstantSource, ...]
    arguments: tuple[int | float, ...] = ()

    def __post_init__(self) -> None:
        require_one_of("function of constants", self.function, list(FUNCTIONS))


ConstantSource = str | ConstantExpr
"""A key of the state_dict, or an expression of such keys."""


State = Mapping[Any, torch.Tensor]
"""Values of constants: a state_dict, to which values of expressions may be added."""


def evaluate(state: State, constant: ConstantSource) -> torch.Tensor:
    """Return the value of a constant, without gradient; its dtype follows from those of the parameters."""
    if constant in state or not isinstance(constant, ConstantExpr):
        return state[constant].detach()
    return FUNCTIONS[constant.function](*(evaluate(state, part) for part in constant.sources), *constant.arguments)


def _pool_filter(weight: torch.Tensor, r: int, s: int) -> torch.Tensor:
    """Return the filter (k, c, r, s) of an r x s average pool, padding counted, and a 1x1 convolution (k, c, 1, 1)."""
    return (weight / (r * s)).expand(-1, -1, r, s)


def _patch_filter(weight: torch.Tensor, block: int) -> torch.Tensor:
    """Return the filter (k, c, block, block) on an image for one (k, block*block*c, 1, 1) on its SpaceToDepth."""
    k, channels = weight.shape[:2]
    return weight.reshape(k, block, block, channels // block**2).permute(0, 3, 1, 2)


def _put_inputs(weight: torch.Tensor, *order: int) -> torch.Tensor:
    """Return a filter (k, c, r, s) whose channel order[i] is channel i of the given one."""
    made = torch.empty_like(weight)
    made[:, list(order)] = weight
    return made


def _dense(weight: torch.Tensor, h: int, w: int, pad_h: int, pad_w: int) -> torch.Tensor:
    """Return a convolution (k, c, r, s) with stride 1 as a matrix on whole images.

    The matrix (p*q*k, h*w*c) multiplies images in channels-last order.
    """
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
    """Return the tensor in float32, or in float64 if it has that dtype."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _norm_scale(variance: torch.Tensor, *weight_and_epsilon: torch.Tensor | float) -> torch.Tensor:
    """Return the factor of a batch normalization: weight / sqrt(variance + epsilon)."""
    *weight, epsilon = weight_and_epsilon
    scale = torch.rsqrt(_precise(variance) + epsilon)
    return scale * weight[0] if weight else scale


def _norm_shift(mean: torch.Tensor, scale: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """Return the summand of a batch normalization, added after its factor: bias - mean scale."""
    return (bias[0] if bias else 0) - _precise(mean) * scale


def _scale_rows(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return weights (k, ...) multiplied by `scale`, of k values or one: the layer's results are so multiplied."""
    return _precise(weight) * scale.to(weight.device).reshape(-1, *[1] * (weight.dim() - 1))


def _scale_columns(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return weights (k, c, r, s) multiplied by `scale`, of c values or one."""
    return _precise(weight) * scale.to(weight.device).reshape(1, -1, *[1] * (weight.dim() - 2))


def _depth_rows(weight: torch.Tensor) -> torch.Tensor:
    """Return the 1x1 filter (r*s*c, k, 1, 1) whose product, by depth_to_space, is the transposed convolution.

    Args:
        weight: (k, c, r, s), k the input channels of a transposed convolution whose stride is its window.
    """
    return weight.permute(2, 3, 1, 0).reshape(-1, weight.shape[0], 1, 1)


def _doubled_filter(weight: torch.Tensor) -> torch.Tensor:
    """Return the filter (c, k, 4, 4) of the transposed convolution that replaces an upsampling and a convolution.

    Args:
        weight: (k, c, 3, 3), the filter behind an upsampling by two to the nearest pixel.
    """

    def sums(taps: torch.Tensor, dim: int) -> torch.Tensor:
        first, middle, last = taps.unbind(dim)
        return torch.stack([last, middle + last, first + middle, first], dim)

    return sums(sums(_precise(weight), 2), 3).transpose(0, 1)


def _squeeze_filter(weight: torch.Tensor, w1: torch.Tensor, *scale: torch.Tensor) -> torch.Tensor:
    """Return the filter (hidden, c, r, s) that replaces a convolution and the first product of its gate.

    Args:
        weight: Filter (k, c, r, s) of the convolution.
        w1: Matrix (hidden, k) that multiplies the mean of the convolution's result, or a 1x1 filter (hidden, k, 1, 1).
        scale: Factor of the result before its mean is taken: k values, or one.
    """
    rows = _precise(w1).flatten(1)
    if scale:
        rows = rows * scale[0].to(w1.device).flatten()
    # Row by row, because no other step of binding is a matrix product, and torch's first one loads its BLAS library.
    flat = _precise(weight).to(rows.dtype).flatten(1)
    return torch.stack([(row[:, None] * flat).sum(0) for row in rows]).view(len(rows), *weight.shape[1:])


def _squeeze_bias(b1: torch.Tensor, w1: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return the bias (hidden) of that product if `shift`, of k values or one, is added before the mean is taken."""
    return _precise(b1) + (_precise(w1).flatten(1) * shift.to(w1.device).flatten()).sum(1)


def _columns_last(weight: torch.Tensor, c: int, h: int, w: int) -> torch.Tensor:
    """Return a matrix (k, c*h*w) on flattened images (c, h, w) for flattened images (h, w, c)."""
    return weight.reshape(-1, c, h, w).permute(0, 2, 3, 1).flatten(1)


def _pad_inputs(weight: torch.Tensor, c: int) -> torch.Tensor:
    """Return weights (k, c', r, s) with zeros for the input channels from c' to c."""
    return torch.nn.functional.pad(weight, (0, 0, 0, 0, 0, c - weight.shape[1]))


def _pad_outputs(weight: torch.Tensor, k: int) -> torch.Tensor:
    """Return weights (k', ...) with zeros for the output channels from k' to k."""
    return torch.nn.functional.pad(weight, (*[0, 0] * (weight.dim() - 1), 0, k - len(weight)))


def _quantization(form: ByteFormat) -> dict[str, Callable[..., torch.Tensor]]:
    """Return the functions of a format: the quantized weight, and its scales times the factor of all channels' sums."""
    weight, scales = form.constants
    return {
        weight: lambda tensor: form.quantize_weight(tensor)[0],
        scales: lambda tensor, factor: form.quantize_weight(tensor)[1] * factor,
    }


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "concatenate": lambda *tensors: torch.cat(tensors),
    "pool_filter": _pool_filter,
    "patch_filter": _patch_filter,
    "put_inputs": _put_inputs,
    "dense": _dense,
    "numbers": lambda *values: torch.tensor(values, dtype=torch.float32),
    "integers": lambda *values: torch.tensor(values),
    "sum": lambda a, b: _precise(a).flatten() + b.to(a.device).flatten(),
    "product": lambda a, b: _precise(a).flatten() * b.to(a.device).flatten(),
    "norm_scale": _norm_scale,
    "norm_shift": _norm_shift,
    "scale_rows": _scale_rows,
    "scale_columns": _scale_columns,
    "depth_rows": _depth_rows,
    "doubled_filter": _doubled_filter,
    "squeeze_filter": _squeeze_filter,
    "squeeze_bias": _squeeze_bias,
    "as_filter": lambda matrix: matrix[:, :, None, None],
    "tile": lambda tensor, *times: tensor.repeat(*times),
    "reshape": lambda tensor, *shape: tensor.reshape(shape),
    "columns_last": _columns_last,
    "pad_inputs": _pad_inputs,
    "pad_outputs": _pad_outputs,
    "merge_groups": merge_groups,
    **{name: function for form in BYTE_FORMATS.values() for name, function in _quantization(form).items()},
}
"""Name -> function of tensors, then numbers, that returns a tensor."""
