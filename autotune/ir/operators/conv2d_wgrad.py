"""Gradient of a convolution with respect to its weight."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.operators.conv2d import Convolution
from autotune.ir.problem.base import Operand, Tensors, as_nchw, as_nhwc
from autotune.ir.problem.registry import register


@register
class Conv2dWgrad(Convolution):
    """Weight gradient of a convolution: dy (n, p, q, k), x (n, h, w, c), y = dw (k, r, s, c/groups).

    y is torch's weight in channels-last order; the channels of its epilogue are the input channels of a group.
    """

    operator: ClassVar[str] = "conv2d_wgrad"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (k, r, s, c/groups)."""
        return (self.k, self.r, self.s, self.c // self.groups)

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._dy, self._x)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the gradient by torch's own function."""
        x, dy = as_nchw(tensors["x"]), as_nchw(tensors["dy"])
        shape = dy.new_zeros(1).expand(self._weight.shape)
        return as_nhwc(self.gradient("weight", dy, x, shape))
