"""Numbers as signed bytes. Everything is symmetric: a value is scale * byte, and -128 is left out.

Weights have a scale for each output channel, activations one for the whole tensor.
"""

from __future__ import annotations

import torch

LARGEST = 127
"""Of a byte's magnitudes."""


def scale_of(largest: torch.Tensor) -> torch.Tensor:
    """The scale with which values up to `largest` in magnitude fill a byte; 1 where all are zero."""
    return torch.where(largest > 0, largest / LARGEST, torch.ones_like(largest))


def to_bytes(values: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """The bytes nearest to values / scale, saturated."""
    return (values / scale).round().clamp(-LARGEST, LARGEST).to(torch.int8)


def quantize_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight's bytes in its own shape (k, ...), and the scale of each output channel (k,), float32."""
    values = weight.detach().float()
    scale = scale_of(values.abs().flatten(1).amax(1))
    return to_bytes(values, scale.view(-1, *[1] * (values.dim() - 1))), scale
