"""Convolution with the projection of a residual block's skip connection."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.core import ProblemError
from autotune.ir.byte_formats import BYTE_FORMATS
from autotune.ir.operators.conv2d import Convolution
from autotune.ir.problem.base import Operand, Tensors, as_nchw, as_nhwc, output_extent
from autotune.ir.problem.fields import Pair
from autotune.ir.problem.registry import register

SCALES = ("scale", "skip_scale")
"""Operands of a problem in bytes: the scales of the sums of both convolutions."""


@register
class Conv2dSkip(Convolution):
    """A convolution plus a 1x1 convolution of another tensor, such as the last of a ResNet's block and its projection.

    skip (n, skip_h, skip_w, skip_c) is convolved with projection (k, skip_c, 1, 1) and the stride skip_stride. The
    convolution of x with weight is added before the first step. Neither convolution has groups.

    In bytes the sums of each convolution have a scale of their own for each channel: those of the first are multiplied
    by scale (k) and those of the second by skip_scale (k), both in float32, before they are added.
    """

    operator: ClassVar[str] = "conv2d_skip"
    sizes: ClassVar[str] = f"{Convolution.sizes} skip_h skip_w skip_c skip_stride_h skip_stride_w"
    struct: ClassVar[str] = "at_conv2d_skip"
    size_fields: ClassVar[tuple[str, ...]] = ("h", "w", "skip_h", "skip_w")
    skip_h: int
    skip_w: int
    skip_c: int
    skip_stride: Pair = (1, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = zip((self.skip_h, self.skip_w), self.skip_stride, strict=True)
        if tuple(output_extent(size, 1, stride, 0) for size, stride in sizes) != (self.p, self.q):
            raise ProblemError(f"'{self}': the projection must have the size of the convolution, {self.p} x {self.q}")
        if self.groups > 1:
            raise ProblemError(f"'{self}': groups must be 1")

    @property
    def flops(self) -> int:
        """Return those of both convolutions."""
        return super().flops + 2 * self.n * self.p * self.q * self.k * self.skip_c

    @property
    def short_name(self) -> str:
        """Return the window, the channels and the image, and the projection's stride and channels."""
        window = f"{self.r}x{self.s}/{self.stride[0]} {self.c}>{self.k} @{self.h}x{self.w}"
        return f"{window} + 1x1/{self.skip_stride[0]} {self.skip_c}"

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._x,
            self._weight,
            Operand("skip", "input", (self.n, self.skip_h, self.skip_w, self.skip_c), self.dtype),
            Operand("projection", "weight", (self.k, self.skip_c, 1, 1), self.dtype),
            *(Operand(name, "vector", (self.k,), "f32") for name in SCALES if self.dtype in BYTE_FORMATS),
        )

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Convolve both tensors and add."""
        product = self.convolve(tensors["x"], tensors["weight"])
        projected = as_nhwc(F.conv2d(as_nchw(tensors["skip"]), tensors["projection"], None, self.skip_stride))
        if self.dtype not in BYTE_FORMATS:
            return product + projected
        scale, skip_scale = (tensors[name].to(product.dtype) for name in SCALES)
        return product * scale + projected * skip_scale
