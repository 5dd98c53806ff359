"""A network's first layer, the residual block after it, and the average pool of the next block."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.operators.avg_pool2d import AvgPool2d
from autotune.ir.operators.se_resnet9.stem_block import StemBlock
from autotune.ir.problem.base import Operand, Tensors
from autotune.ir.problem.registry import register


@register
class StemSeBlockPool(StemBlock):
    """As stem_se_block, with a second output.

    `pooled` (n, p/2, q/2, k), rounded up, is the mean of y over 3x3 pixels, stride 2 and padding 1, which counts.
    """

    operator: ClassVar[str] = "stem_se_block_pool"

    @property
    def pool(self) -> AvgPool2d:
        """Return the pool alone."""
        n, h, w, c = self.output_shape
        return AvgPool2d(n=n, h=h, w=w, c=c, r=3, s=3, stride=(2, 2), pad=(1, 1), dtype=self.dtype)

    @property
    def short_name(self) -> str:
        """Return the channels and the image."""
        return f"stem+block+pool {self._size_name}"

    def operands(self) -> tuple[Operand, ...]:
        """Return those of the stem and its block, and `pooled`."""
        return (*super().operands(), Operand("pooled", "output", self.pool.output_shape, self.dtype))

    def reference_outputs(
        self, tensors: Tensors, y: torch.Tensor, scalars: tuple[float, ...]
    ) -> dict[str, torch.Tensor]:
        """Return `pooled`."""
        return {"pooled": self.pool.average(y)}
