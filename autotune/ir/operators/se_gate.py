"""Squeeze-and-excitation (Hu et al., arXiv 1709.01507): its weights and arithmetic, shared by several operators.

gate = sigmoid(w2 relu(w1 mean(x) + b1) + b2), the mean over the pixels, one gate per channel; y = x * gate.
Some networks have other activations in the places of relu and sigmoid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.problem.base import Images, Operand, Tensors, problem_class


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


Activation = Callable[[torch.Tensor], torch.Tensor]


def apply_gate(
    x: torch.Tensor, tensors: Tensors, act: Activation = torch.relu, gate: Activation = torch.sigmoid
) -> torch.Tensor:
    """Return x (n, h, w, channels) scaled by the gate of its own mean."""
    return apply_squeezed(x, F.linear(x.mean((1, 2)), tensors["w1"]), tensors, act, gate)


def apply_squeezed(
    x: torch.Tensor,
    squeezed: torch.Tensor,
    tensors: Tensors,
    act: Activation = torch.relu,
    gate: Activation = torch.sigmoid,
) -> torch.Tensor:
    """Return x (n, h, w, channels) scaled by the gate of `squeezed` (n, hidden), the product with w1 before b1.

    Args:
        x: The tensor to scale.
        squeezed: The product of w1 and the mean.
        tensors: The weights and biases by name.
        act: The activation of the hidden values.
        gate: The activation of the gates.
    """
    hidden = act(squeezed + tensors["b1"].to(x.dtype))
    gates = gate(F.linear(hidden, tensors["w2"], tensors["b2"].to(x.dtype)))
    return x * gates[:, None, None, :]


@problem_class
class SelfGated(Images):
    """The base of operators that scale x (n, h, w, c) by the gate of its own mean; y has the shape of x."""

    sizes: ClassVar[str] = "n h w c hidden"
    struct: ClassVar[str] = "at_se_tail"
    hidden: int

    @property
    def flops(self) -> int:
        """Return those of the mean, the scaling and the two matrix products."""
        return self.n * gate_flops(self.h * self.w, self.c, self.hidden)

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x, *gate_operands(self.c, self.hidden, self.dtype))
