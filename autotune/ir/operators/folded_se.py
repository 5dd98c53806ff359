"""The base of convolutions whose squeeze-and-excitation begins with a filter of the convolution's own input."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.core import ProblemError
from autotune.ir.epilogue import AnchorFunction
from autotune.ir.operators.conv2d import Convolution
from autotune.ir.operators.conv2d_se import Conv2dSe
from autotune.ir.operators.se_gate import apply_squeezed, gate_operands
from autotune.ir.problem.base import Operand, Tensors, problem_class


@problem_class
class FoldedSe(Convolution):
    """A convolution whose gate is computed from the mean of another convolution of the same input, by w1."""

    sizes: ClassVar[str] = Conv2dSe.sizes
    struct: ClassVar[str] = Conv2dSe.struct
    hidden: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups > 1:
            raise ProblemError(f"'{self}': groups must be 1, because the hidden values depend on all channels")

    @property
    def flops(self) -> int:
        """Return those of both convolutions, the second matrix product and the scaling."""
        hidden = super().flops // self.k * self.hidden
        return super().flops + hidden + self.n * (self.p * self.q * self.k + 2 * self.k * self.hidden)

    def _inputs(self) -> tuple[Operand, ...]:
        _, *others = gate_operands(self.k, self.hidden, self.dtype)
        first = Operand("w1", "weight", (self.hidden, *self._weight.shape[1:]), self.dtype)
        return (self._x, self._weight, first, *others)

    def reference_anchors(self, tensors: Tensors) -> tuple[AnchorFunction, ...]:
        """Return the function of `gate`."""

        def gate(value: torch.Tensor) -> torch.Tensor:
            return apply_squeezed(value, self.convolve(tensors["x"], tensors["w1"]).mean((1, 2)), tensors)

        return (gate,)
