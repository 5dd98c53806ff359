"""Convolution with squeeze-and-excitation."""

from __future__ import annotations

from typing import ClassVar

from autotune.ir.epilogue import AnchorFunction, Epilogue
from autotune.ir.operators.conv2d import Convolution
from autotune.ir.operators.se_gate import apply_gate, gate_flops, gate_operands
from autotune.ir.problem.base import Operand, Tensors
from autotune.ir.problem.registry import register

_GATE = Epilogue(("gate",))


@register
class Conv2dSe(Convolution):
    """Convolution with squeeze-and-excitation among the steps that follow it.

    The step `gate` stands where the value x so far is scaled: x * sigmoid(w2 relu(w1 mean(x) + b1) + b2), the mean over
    the output's pixels, w1 (hidden, k), w2 (k, hidden). A residual block ends with "bias,gate,add,relu".
    """

    operator: ClassVar[str] = "conv2d_se"
    sizes: ClassVar[str] = f"{Convolution.sizes} hidden"
    struct: ClassVar[str] = "at_conv2d_se"
    anchors: ClassVar[tuple[str, ...]] = ("gate",)
    hidden: int
    epilogue: Epilogue = _GATE

    @property
    def flops(self) -> int:
        """Return those of the convolution, the mean, the scaling and the two matrix products."""
        return super().flops + self.n * gate_flops(self.p * self.q, self.k, self.hidden)

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x, self._weight, *gate_operands(self.k, self.hidden, self.dtype))

    def reference_anchors(self, tensors: Tensors) -> tuple[AnchorFunction, ...]:
        """Return the function of `gate`."""
        return (lambda value: apply_gate(value, tensors),)
