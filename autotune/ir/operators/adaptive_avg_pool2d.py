"""Average pool to a given size."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.operators.pool2d import Pool2d
from autotune.ir.problem.base import Images, Tensors, as_nchw, as_nhwc
from autotune.ir.problem.registry import register


@register
class AdaptiveAvgPool2d(Images):
    """Average pooling to p x q pixels: x (n, h, w, c), y (n, p, q, c).

    Row i of y averages the rows of x from floor(i h / p) to ceil((i + 1) h / p), likewise for columns. Where p divides
    h and q divides w, avg_pool2d computes the same.
    """

    operator: ClassVar[str] = "adaptive_avg_pool2d"
    sizes: ClassVar[str] = Pool2d.sizes
    struct: ClassVar[str] = Pool2d.struct
    p: int
    q: int

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, p, q, c)."""
        return (self.n, self.p, self.q, self.c)

    @property
    def flops(self) -> int:
        """Return one addition per tap of the windows."""
        return self.n * self.c * _taps(self.h, self.p) * _taps(self.w, self.q)

    @property
    def short_name(self) -> str:
        """Return the output, the channels and the image."""
        return f"pool to {self.p}x{self.q} {self.c} @{self.h}x{self.w}"

    def struct_values(self) -> tuple[int, ...]:
        """Return the sizes; windows and strides differ from pixel to pixel and are 0."""
        return (self.n, self.h, self.w, self.c, 0, 0, self.p, self.q, 0, 0, 0, 0)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Average each window."""
        return as_nhwc(F.adaptive_avg_pool2d(as_nchw(tensors["x"]), (self.p, self.q)))


def _taps(size: int, parts: int) -> int:
    """Return the sum of all windows' heights."""
    return sum(-(-(i + 1) * size // parts) - i * size // parts for i in range(parts))
