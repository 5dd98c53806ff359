"""Conversion of patches of an image to channels."""

from __future__ import annotations

from typing import ClassVar

import einops
import torch

from autotune.core import ProblemError
from autotune.ir.problem.base import Images, Operand, Tensors
from autotune.ir.problem.registry import register


@register
class SpaceToDepth(Images):
    """Moves block x block patches to channels, and NCHW to NHWC.

    x (n, c, h, w) in torch's order; y (n, h/block, w/block, block*block*c), output channel
    (dy*block + dx)*c + channel.
    """

    operator: ClassVar[str] = "space_to_depth"
    sizes: ClassVar[str] = "n h w c block"
    block: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.h % self.block or self.w % self.block:
            raise ProblemError(f"'{self}': block must divide both h and w")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h/block, w/block, block*block*c)."""
        return (self.n, self.h // self.block, self.w // self.block, self.block * self.block * self.c)

    @property
    def short_name(self) -> str:
        """Return the block, the channels and the image."""
        return f"s2d {self.block}x{self.block} {self.c} @{self.h}x{self.w}"

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x_nchw,)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Rearrange the image."""
        pattern = "n c (p dy) (q dx) -> n p q (dy dx c)"
        return einops.rearrange(tensors["x"], pattern, dy=self.block, dx=self.block)
