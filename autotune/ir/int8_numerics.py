"""Quantization to signed bytes.

Quantization is symmetric: value = scale * byte, with bytes from -127 to 127. Weights have one scale per output channel,
activations one scale per tensor.
"""

from __future__ import annotations

import torch

MAX_BYTE = 127
"""Largest magnitude of a quantized value; -128 is not used, so that the range is symmetric."""
MAX_PRODUCTS = 2**31 // 2**14
"""Number of products of two signed bytes, each at most 2^14 in magnitude, from which a sum could overflow an int32."""


def scale_of(largest: torch.Tensor) -> torch.Tensor:
    """Return the scale with which magnitudes up to `largest` use all bytes; 1 where `largest` is 0."""
    return torch.where(largest > 0, largest / MAX_BYTE, torch.ones_like(largest))


def to_bytes(values: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """Return values / scale as int8, rounded to the nearest (ties to even) and saturated."""
    return (values / scale).round().clamp(-MAX_BYTE, MAX_BYTE).to(torch.int8)


def quantize_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a weight (k, ...).

    Returns:
        The bytes, int8 in the shape of the weight, and the scale of each output channel, float32 (k,).
    """
    values = weight.detach().float()
    scale = scale_of(values.abs().flatten(1).amax(1))
    return to_bytes(values, scale.view(-1, *[1] * (values.dim() - 1))), scale
