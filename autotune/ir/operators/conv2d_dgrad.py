"""Gradient of a convolution with respect to its input."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.operators.conv2d import Conv2d, Convolution
from autotune.ir.problem.base import Operand, Tensors, as_nchw, as_nhwc
from autotune.ir.problem.registry import register


@register
class Conv2dDgrad(Convolution):
    """Input gradient of a convolution: dy (n, p, q, k), weight (k, c/groups, r, s), y = dx (n, h, w, c)."""

    operator: ClassVar[str] = "conv2d_dgrad"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h, w, c)."""
        return self._x.shape

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._dy, self._weight)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the gradient by torch's own function."""
        dy, weight = as_nchw(tensors["dy"]), tensors["weight"]
        shape = dy.new_zeros(1).expand(self.n, self.c, self.h, self.w)
        return as_nhwc(self.gradient("x", dy, shape, weight))

    def as_convolution(self) -> Conv2d | None:
        """Return the convolution of dy with the turned weight (see `turn_weight`) that computes the same.

        None for a stride other than 1, for padding that is wider than the window, and with an epilogue.
        """
        pad = (self.dilation[0] * (self.r - 1) - self.pad[0], self.dilation[1] * (self.s - 1) - self.pad[1])
        if self.stride != (1, 1) or min(pad) < 0 or self.epilogue.steps:
            return None
        _, p, q, _ = self._dy.shape
        return Conv2d(
            n=self.n, h=p, w=q, c=self.k, k=self.c, r=self.r, s=self.s, pad=pad, dilation=self.dilation,
            groups=self.groups, dtype=self.dtype,
        )  # fmt: skip
