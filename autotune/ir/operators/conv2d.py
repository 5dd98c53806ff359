"""Forward convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from autotune.ir.operators.convolution import Convolution
from autotune.ir.problem.base import Operand, Tensors
from autotune.ir.problem.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Conv2d(Convolution):
    """Forward convolution (cross-correlation): x (n, h, w, c), weight (k, c/groups, r, s), y (n, p, q, k)."""

    operator: ClassVar[str] = "conv2d"

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x, self._weight)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Convolve."""
        return self.convolve(tensors["x"], tensors["weight"])
