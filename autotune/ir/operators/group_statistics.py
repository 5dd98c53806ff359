"""Statistics of a group normalization."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.operators.group_norm import ChannelGroups
from autotune.ir.problem.base import Images, Tensors
from autotune.ir.problem.registry import register


def image_statistics(problem: Images) -> tuple[int, ...]:
    """Return the shape of the statistics of images: two values for each channel of each image."""
    return (problem.n, 2, problem.c)


@register
class GroupStatistics(ChannelGroups):
    """Statistics of the groups of channels of each image: x (n, h, w, c), y (n, 2, c) in float32.

    The rows of y are, for each channel, the mean of its group and factor = 1 / sqrt(variance + eps). eps is the
    operator's scalar.
    """

    operator: ClassVar[str] = "group_statistics"
    has_epilogue: ClassVar[bool] = False
    sizes: ClassVar[str] = "n h w c groups"

    @property
    def output_dtype(self) -> str:
        """Return f32."""
        return "f32"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, 2, c)."""
        return image_statistics(self)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute mean and variance of each group, and what follows from them."""
        parts = tensors["x"].reshape(self.n, self.h * self.w, self.groups, -1)
        variance, mean = torch.var_mean(parts, (1, 3), correction=0)
        rows = torch.stack([mean, torch.rsqrt(variance + scalars[0])], 1)
        return rows.repeat_interleave(self.c // self.groups, 2)
