"""Statistics of a batch normalization in training."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.operators.pixelwise import IMAGE_SIZES, IMAGE_STRUCT
from autotune.ir.problem.base import Images, Operand, Tensors
from autotune.ir.problem.registry import register

STATISTICS = 5
"""Rows of the statistics: mean, unbiased variance, factor, scale and shift."""

NORM_SCALE, NORM_SHIFT = 3, 4
"""The rows from which the normalization is computed."""


@register
class BatchNormStatistics(Images):
    """Statistics of each channel: x (n, h, w, c), weight and bias (c), y (5, c) in float32.

    With m = n h w and the sum s of squared distances from the mean, the rows of y are

    - the mean
    - the unbiased variance s / (m - 1), which torch's running variance takes in; s for one pixel
    - factor = 1 / sqrt(s / m + eps), by which distances from the mean are normalized; eps is the operator's scalar
    - scale = weight factor and shift = bias - mean scale: the normalization is scale x + shift.
    """

    operator: ClassVar[str] = "batch_norm_statistics"
    has_epilogue: ClassVar[bool] = False
    sizes: ClassVar[str] = IMAGE_SIZES
    struct: ClassVar[str] = IMAGE_STRUCT
    scalars: ClassVar[int] = 1

    @property
    def output_dtype(self) -> str:
        """Return f32."""
        return "f32"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (5, c)."""
        return (STATISTICS, self.c)

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x, Operand("weight", "vector", (self.c,), "f32"), Operand("bias", "vector", (self.c,), "f32"))

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute mean and variance, and what follows from them."""
        pixels = tensors["x"].reshape(-1, self.c)
        variance, mean = torch.var_mean(pixels, 0, correction=0)
        factor = torch.rsqrt(variance + scalars[0])
        unbiased = variance * (len(pixels) / max(len(pixels) - 1, 1))
        scale = tensors["weight"] * factor
        return torch.stack([mean, unbiased, factor, scale, tensors["bias"] - mean * scale])
