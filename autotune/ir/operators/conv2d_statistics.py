"""Convolution with the statistics of the batch normalization behind it."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.operators.batch_norm_statistics import BatchNormStatistics
from autotune.ir.operators.conv2d_with_norm import Conv2dWithNorm
from autotune.ir.problem.base import Operand, Tensors
from autotune.ir.problem.registry import register


@register
class Conv2dStatistics(Conv2dWithNorm):
    """A convolution, and the statistics of its result for the batch normalization in training that reads it.

    y is that of Conv2d. `statistics` (5, k) in float32 is the y of BatchNormStatistics for it: kernels may compute it
    from values that are not yet rounded to the dtype of y. norm_weight and norm_bias (k) are the weight and bias of the
    normalization; the scalar is its eps.
    """

    operator: ClassVar[str] = "conv2d_statistics"
    scalars: ClassVar[int] = 1

    @property
    def norm(self) -> BatchNormStatistics:
        """Return the statistics alone."""
        n, h, w, c = self.output_shape
        return BatchNormStatistics(n=n, h=h, w=w, c=c, dtype=self.dtype)

    @property
    def short_name(self) -> str:
        """Return that of the convolution."""
        return f"{self.convolution.short_name} + statistics"

    def operands(self) -> tuple[Operand, ...]:
        """Return x, weight and y, then norm_weight, norm_bias and statistics."""
        of_channels = (Operand(name, "vector", (self.k,), "f32") for name in ("norm_weight", "norm_bias"))
        statistics = Operand("statistics", "output", self.norm.output_shape, self.norm.output_dtype)
        return (*super().operands(), *of_channels, statistics)

    def reference_outputs(
        self, tensors: Tensors, y: torch.Tensor, scalars: tuple[float, ...]
    ) -> dict[str, torch.Tensor]:
        """Return the statistics."""
        of_norm = {"x": y, "weight": tensors["norm_weight"], "bias": tensors["norm_bias"]}
        return {"statistics": self.norm.reference(of_norm, scalars)}
