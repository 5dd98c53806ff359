"""Residual block with squeeze-and-excitation, whose identity is its input."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.epilogue import AnchorFunction, Epilogue
from autotune.ir.operators.se_gate import apply_gate, gate_flops, gate_operands
from autotune.ir.operators.se_resnet9.conv3x3 import conv3x3
from autotune.ir.problem.base import Images, Operand, Tensors
from autotune.ir.problem.registry import register

_CONV_AND_GATE = Epilogue(("conv", "gate"))


@register
class SeBlock(Images):
    """A residual block: two 3x3 convolutions, squeeze-and-excitation, and the steps around them.

    x (n, h, w, c) is convolved with weight1 (c, c, 3, 3), stride and padding 1. In the epilogue, the step `conv` stands
    where the value so far is convolved with weight2 (c, c, 3, 3) likewise, and `gate` where it is scaled as by
    conv2d_se, with w1 (hidden, c) and w2 (c, hidden): "bias,relu,conv,bias,gate,add,relu".
    """

    operator: ClassVar[str] = "se_block"
    sizes: ClassVar[str] = "n h w c hidden"
    anchors: ClassVar[tuple[str, ...]] = ("conv", "gate")
    hidden: int
    epilogue: Epilogue = _CONV_AND_GATE

    @property
    def flops(self) -> int:
        """Return those of the two convolutions, the mean, the scaling and the two matrix products."""
        pixels = self.h * self.w
        return self.n * (36 * pixels * self.c**2 + gate_flops(pixels, self.c, self.hidden))

    @property
    def short_name(self) -> str:
        """Return the channels and the image."""
        return f"block {self.c} @{self.h}x{self.w}"

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._x,
            Operand("weight1", "weight", (self.c, self.c, 3, 3), self.dtype),
            Operand("weight2", "weight", (self.c, self.c, 3, 3), self.dtype),
            *gate_operands(self.c, self.hidden, self.dtype),
        )

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the first convolution."""
        return conv3x3(tensors["x"], tensors["weight1"])

    def reference_anchors(self, tensors: Tensors) -> tuple[AnchorFunction, ...]:
        """Return the functions of `conv` and `gate`."""
        return (lambda value: conv3x3(value, tensors["weight2"]), lambda value: apply_gate(value, tensors))
