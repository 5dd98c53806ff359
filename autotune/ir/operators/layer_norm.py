"""Normalization over the channels of each pixel."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.operators.pixelwise import Pixelwise
from autotune.ir.problem.base import Tensors
from autotune.ir.problem.registry import register


@register
class LayerNorm(Pixelwise):
    """Layer normalization over channels: x and y (n, h, w, c), y = (x - mean) / sqrt(variance + eps) in each pixel.

    eps is the operator's scalar. Weight and bias of torch.nn.LayerNorm are steps `scale` and `bias` of the epilogue.
    """

    operator: ClassVar[str] = "layer_norm"
    scalars: ClassVar[int] = 1

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Normalize each pixel."""
        return F.layer_norm(tensors["x"], (self.c,), eps=scalars[0])
