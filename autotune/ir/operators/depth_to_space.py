"""Conversion of channels to patches of an image."""

from __future__ import annotations

from typing import ClassVar

import einops
import torch

from autotune.ir.problem.base import Images, Operand, Tensors
from autotune.ir.problem.fields import NonNegative, Pair
from autotune.ir.problem.registry import register


@register
class DepthToSpace(Images):
    """Moves groups of channels to block x block patches: y (n, h*block, w*block, c).

    x is (n, h, w, block*block*c), channel (dy*block + dx)*c + channel, or channel*block*block + dy*block + dx if
    inner=1, as torch.nn.PixelShuffle has it.
    """

    operator: ClassVar[str] = "depth_to_space"
    sizes: ClassVar[str] = "n h w c block_h block_w inner"
    block: Pair
    inner: NonNegative = 0

    @property
    def depth(self) -> int:
        """Return the channels of x."""
        return self.block[0] * self.block[1] * self.c

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h*block, w*block, c)."""
        return (self.n, self.h * self.block[0], self.w * self.block[1], self.c)

    @property
    def short_name(self) -> str:
        """Return the block, the channels and the image."""
        return f"d2s {self.block[0]}x{self.block[1]} {self.c} @{self.h}x{self.w}"

    def _inputs(self) -> tuple[Operand, ...]:
        return (Operand("x", "input", (self.n, self.h, self.w, self.depth), self.dtype),)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Rearrange the image."""
        channels = "(c dy dx)" if self.inner else "(dy dx c)"
        pattern = f"n p q {channels} -> n (p dy) (q dx) c"
        return einops.rearrange(tensors["x"], pattern, dy=self.block[0], dx=self.block[1])
