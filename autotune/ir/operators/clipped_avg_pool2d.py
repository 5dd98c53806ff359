"""Average pool over the pixels of the image alone."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.operators.pool2d import CeilPool2d
from autotune.ir.problem.base import Tensors, as_nchw, as_nhwc
from autotune.ir.problem.registry import register


@register
class ClippedAvgPool2d(CeilPool2d):
    """Average pooling over the pixels of each window that lie in x: x (n, h, w, c), y (n, p, q, c).

    It is torch's count_include_pad=False; ceil=1 is torch's ceil_mode.
    """

    operator: ClassVar[str] = "clipped_avg_pool2d"

    @property
    def short_name(self) -> str:
        """Return the window, the channels and the image."""
        return f"clipped pool {self._window_name}"

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Average the pixels of each window."""
        x, window, ceil = as_nchw(tensors["x"]), (self.r, self.s), bool(self.ceil)
        return as_nhwc(F.avg_pool2d(x, window, self.stride, self.pad, ceil, count_include_pad=False))
