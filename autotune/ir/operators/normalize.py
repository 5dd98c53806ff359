"""Normalization by statistics of each image."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.operators.group_statistics import image_statistics
from autotune.ir.operators.pixelwise import Pixelwise
from autotune.ir.problem.base import Operand, Tensors
from autotune.ir.problem.registry import register


@register
class Normalize(Pixelwise):
    """Normalization by given statistics: y = (x - mean) factor, both (n, h, w, c).

    Mean and factor are the rows of statistics (n, 2, c) in float32, which GroupStatistics computes.
    """

    operator: ClassVar[str] = "normalize"

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x, Operand("statistics", "input", image_statistics(self), "f32"))

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Subtract the mean and multiply by the factor."""
        mean, factor = tensors["statistics"][:, :, None, None].unbind(1)
        return (tensors["x"] - mean) * factor
