"""Average pool."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.operators.pool2d import Pool2d
from autotune.ir.problem.base import Tensors, as_nchw, as_nhwc
from autotune.ir.problem.registry import register


@register
class AvgPool2d(Pool2d):
    """Average pooling with the padding counted: x (n, h, w, c), y (n, p, q, c)."""

    operator: ClassVar[str] = "avg_pool2d"

    @property
    def short_name(self) -> str:
        """Return the window, the channels and the image."""
        return f"pool {self._window_name}"

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Average each window; padding counts as zeros."""
        return self.average(tensors["x"])

    def average(self, x: torch.Tensor) -> torch.Tensor:
        """Return the averages of the windows of x (n, h, w, c): (n, p, q, c)."""
        return as_nhwc(F.avg_pool2d(as_nchw(x), (self.r, self.s), self.stride, self.pad))
