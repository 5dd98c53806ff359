"""Gradient of a max pool with respect to its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.problem.base import Operand, Tensors
from autotune.ir.problem.images import as_nchw, as_nhwc
from autotune.ir.problem.operators.pool2d import CeilPool2d
from autotune.ir.problem.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class MaxPool2dGradient(CeilPool2d):
    """Input gradient of max pooling: dy (n, p, q, c), x and y = dx (n, h, w, c).

    As in torch, the gradient of a window goes to its first largest value, row by row.
    """

    operator: ClassVar[str] = "max_pool2d_gradient"
    has_epilogue: ClassVar[bool] = False

    @property
    def short_name(self) -> str:
        """Return the window, the channels and the image."""
        return f"max gradient {self._window_name}"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h, w, c)."""
        return self._x.shape

    @property
    def flops(self) -> int:
        """Return one comparison per tap: n p q c r s."""
        return self.n * self.p * self.q * self.c * self.r * self.s

    def _inputs(self) -> tuple[Operand, ...]:
        return (Operand("dy", "input", (self.n, self.p, self.q, self.c), self.dtype), self._x)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the gradient by torch's own function."""
        x, window = as_nchw(tensors["x"]), (self.r, self.s)
        pad, ceil = list(self.pad), bool(self.ceil)
        _, places = F.max_pool2d(x, window, self.stride, pad, ceil_mode=ceil, return_indices=True)
        return as_nhwc(
            torch.ops.aten.max_pool2d_with_indices_backward(
                as_nchw(tensors["dy"]), x, list(window), list(self.stride), pad, [1, 1], ceil, places
            )
        )
