"""Normalization over the pixels and channels of each group of channels."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.core import ProblemError
from autotune.ir.problem.base import Images, Tensors, as_nchw, as_nhwc, problem_class
from autotune.ir.problem.registry import register


@problem_class
class ChannelGroups(Images):
    """A problem on groups of channels of each image, with an eps as the operator's scalar."""

    scalars: ClassVar[int] = 1
    groups: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c % self.groups:
            raise ProblemError(f"'{self}': groups must divide c")


@register
class GroupNorm(ChannelGroups):
    """Group normalization: x and y (n, h, w, c), y = (x - mean) / sqrt(variance + eps) in each image and group.

    Instance normalization has groups=c. eps is the operator's scalar. Weight and bias of torch.nn.GroupNorm are steps
    `scale` and `bias` of the epilogue.
    """

    operator: ClassVar[str] = "group_norm"
    sizes: ClassVar[str] = "n h w c groups"

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Normalize each group of each image."""
        return as_nhwc(torch.group_norm(as_nchw(tensors["x"]), self.groups, eps=scalars[0]))
