"""Squeeze-and-excitation (Hu et al., arXiv 1709.01507): its weights and arithmetic, shared by several operators.

gate = sigmoid(w2 relu(w1 mean(x) + b1) + b2), the mean over the pixels, one gate per channel; y = x * gate.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from autotune.ir.problem.base import Operand, Tensors


def gate_operands(channels: int, hidden: int, dtype: str) -> tuple[Operand, ...]:
    """Return the weights and biases w1 (hidden, channels), b1 (hidden), w2 (channels, hidden) and b2 (channels)."""
    return (
        Operand("w1", "weight", (hidden, channels), dtype),
        Operand("b1", "vector", (hidden,), "f32"),
        Operand("w2", "weight", (channels, hidden), dtype),
        Operand("b2", "vector", (channels,), "f32"),
    )


def gate_flops(pixels: int, channels: int, hidden: int) -> int:
    """Return the operations for one image: the mean, the scaling and the two matrix products."""
    return 2 * pixels * channels + 4 * channels * hidden


def apply_gate(x: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """Return x (n, h, w, channels) scaled by the gate of its own mean."""
    return apply_squeezed(x, F.linear(x.mean((1, 2)), tensors["w1"]), tensors)


def apply_squeezed(x: torch.Tensor, squeezed: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """Return x (n, h, w, channels) scaled by the gate of `squeezed` (n, hidden), the product with w1 before b1."""
    hidden = torch.relu(squeezed + tensors["b1"].to(x.dtype))
    gate = torch.sigmoid(F.linear(hidden, tensors["w2"], tensors["b2"].to(x.dtype)))
    return x * gate[:, None, None, :]
