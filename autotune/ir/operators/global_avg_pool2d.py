"""Average over all pixels."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.operators.pixelwise import IMAGE_SIZES, IMAGE_STRUCT
from autotune.ir.problem.base import Images, Tensors
from autotune.ir.problem.registry import register


@register
class GlobalAvgPool2d(Images):
    """The mean of all pixels: x (n, h, w, c), y (n, 1, 1, c), which is the x (n, c) of a gemm."""

    operator: ClassVar[str] = "global_avg_pool2d"
    sizes: ClassVar[str] = IMAGE_SIZES
    struct: ClassVar[str] = IMAGE_STRUCT

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, 1, 1, c)."""
        return (self.n, 1, 1, self.c)

    @property
    def flops(self) -> int:
        """Return one addition per value: n h w c."""
        return self.n * self.h * self.w * self.c

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Average over h and w."""
        return tensors["x"].mean((1, 2), keepdim=True)
