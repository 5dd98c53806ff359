"""Convolution of patches that do not overlap."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.core import ProblemError
from autotune.ir.operators.conv2d import Conv2d
from autotune.ir.problem.base import Images, Operand, Tensors, as_nhwc
from autotune.ir.problem.registry import register


@register
class PatchConv2d(Images):
    """Convolution of patches that do not overlap, on an image in torch's order: stride and filter are the block.

    x (n, c, h, w), weight (k, c, block, block), y (n, h/block, w/block, k).
    """

    operator: ClassVar[str] = "patch_conv2d"
    sizes: ClassVar[str] = Conv2d.sizes
    struct: ClassVar[str] = Conv2d.struct
    k: int
    block: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.h % self.block or self.w % self.block:
            raise ProblemError(f"'{self}': block must divide both h and w")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h/block, w/block, k)."""
        return (self.n, self.h // self.block, self.w // self.block, self.k)

    @property
    def flops(self) -> int:
        """Return 2 n h w c k."""
        return 2 * self.n * self.h * self.w * self.c * self.k

    @property
    def as_conv2d(self) -> Conv2d:
        """Return the same convolution on an image in channels-last order, as kernels receive it."""
        block = (self.block, self.block)
        return Conv2d(
            n=self.n, h=self.h, w=self.w, c=self.c, k=self.k, r=self.block, s=self.block, stride=block,
            dtype=self.dtype, epilogue=self.epilogue,
        )  # fmt: skip

    def struct_values(self) -> tuple[int, ...]:
        """Return the sizes of the convolution."""
        return self.as_conv2d.struct_values()

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._x_nchw,
            Operand("weight", "weight", (self.k, self.c, self.block, self.block), self.dtype),
        )

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Convolve with the block as stride."""
        return as_nhwc(F.conv2d(tensors["x"], tensors["weight"], stride=self.block))
