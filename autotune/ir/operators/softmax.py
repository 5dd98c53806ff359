"""Softmax over the channels of each pixel."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.operators.pixelwise import Pixelwise
from autotune.ir.problem.base import Tensors
from autotune.ir.problem.registry import register


@register
class Softmax(Pixelwise):
    """Softmax over channels: x and y (n, h, w, c), y = exp(x) / sum(exp(x)) in each pixel."""

    operator: ClassVar[str] = "softmax"

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Apply it to each pixel."""
        return tensors["x"].softmax(-1)
