"""Conversion of an image from torch's order to channels last."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.core import ProblemError
from autotune.ir.problem.base import Images, Operand, Tensors, as_nhwc
from autotune.ir.problem.registry import register


@register
class ToChannelsLast(Images):
    """NCHW to NHWC: x (n, c, h, w) in torch's order, y (n, h, w, to); before the epilogue, channels from c on are 0."""

    operator: ClassVar[str] = "to_channels_last"
    sizes: ClassVar[str] = "n h w c to"
    to: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to < self.c:
            raise ProblemError(f"'{self}': to must be at least c")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h, w, to)."""
        return (self.n, self.h, self.w, self.to)

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x_nchw,)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Move the channels to the last axis, and append channels of zeros."""
        x = as_nhwc(tensors["x"])
        return F.pad(x, (0, self.to - self.c)) if self.to > self.c else x
