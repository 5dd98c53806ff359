"""Max pool."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.operators.pool2d import CeilPool2d
from autotune.ir.problem.base import Tensors, as_nchw, as_nhwc
from autotune.ir.problem.registry import register


@register
class MaxPool2d(CeilPool2d):
    """Max pooling: x (n, h, w, c), y (n, p, q, c). Padding is below every value; ceil=1 is torch's ceil_mode."""

    operator: ClassVar[str] = "max_pool2d"

    @property
    def short_name(self) -> str:
        """Return the window, the channels and the image."""
        return f"max {self._window_name}"

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Take the largest value of each window."""
        x, window = as_nchw(tensors["x"]), (self.r, self.s)
        return as_nhwc(F.max_pool2d(x, window, self.stride, self.pad, ceil_mode=bool(self.ceil)))
