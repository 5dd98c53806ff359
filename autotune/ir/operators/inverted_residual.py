"""The three convolutions of an inverted residual block: 1x1 that widens, depthwise, and 1x1 that narrows."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.epilogue import AnchorFunction, Argument, Epilogue
from autotune.ir.operators.conv2d_se import Conv2dSe
from autotune.ir.problem.base import Images, Operand, Tensors, Windowed, as_nchw, as_nhwc
from autotune.ir.problem.fields import NonNegativePair, Pair
from autotune.ir.problem.registry import register

_CONVS = Epilogue(("conv", "conv"))


@register
class InvertedResidual(Windowed, Images):
    """An inverted residual block without squeeze-and-excitation, as in MobileNetV2.

    x (n, h, w, c) is convolved with weight1 (hidden, c, 1, 1). In the epilogue, the first step `conv` stands where the
    value so far is convolved with weight2 (hidden, 1, r, s), one filter for each channel, and the second one where it
    is convolved with weight3 (k, hidden, 1, 1): "bias,relu6,conv,bias,relu6,conv,bias,add". Stride and padding are
    those of the second convolution. The tensors of the steps before the second `conv` have `hidden` channels. A
    residual sum is a step `add` of the block's input.
    """

    operator: ClassVar[str] = "inverted_residual"
    sizes: ClassVar[str] = Conv2dSe.sizes
    struct: ClassVar[str] = "at_conv2d_se"
    anchors: ClassVar[tuple[str, ...]] = ("conv", "conv")
    hidden: int
    k: int
    r: int
    s: int
    stride: Pair = (1, 1)
    pad: NonNegativePair = (0, 0)
    epilogue: Epilogue = _CONVS

    @property
    def dilation(self) -> tuple[int, int]:
        """Return (1, 1), for the C struct."""
        return (1, 1)

    @property
    def groups(self) -> int:
        """Return those of the second convolution: one for each of its channels."""
        return self.hidden

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, p, q, k)."""
        return (self.n, self.p, self.q, self.k)

    @property
    def roundings(self) -> int:
        """Return 3: both wide tensors are rounded too."""
        return 3

    @property
    def flops(self) -> int:
        """Return those of the three convolutions."""
        pixels = self.h * self.w * self.c + self.p * self.q * (self.r * self.s + self.k)
        return 2 * self.n * self.hidden * pixels

    @property
    def short_name(self) -> str:
        """Return the channels, the filter and the image."""
        channels = f"{self.c}>{self.hidden}>{self.k}"
        return f"inverted {channels} dw {self.r}x{self.s}/{self.stride[0]} @{self.h}x{self.w}"

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._x,
            Operand("weight1", "weight", (self.hidden, self.c, 1, 1), self.dtype),
            Operand("weight2", "weight", (self.hidden, 1, self.r, self.s), self.dtype),
            Operand("weight3", "weight", (self.k, self.hidden, 1, 1), self.dtype),
        )

    def _shape_at(self, argument: Argument) -> tuple[int, ...]:
        first, second, _ = self.epilogue.parts
        if any(argument in step.arguments for step in first):
            return (self.n, self.h, self.w, self.hidden)
        if any(argument in step.arguments for step in second):
            return (self.n, self.p, self.q, self.hidden)
        return self.output_shape

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the first convolution."""
        return as_nhwc(F.conv2d(as_nchw(tensors["x"]), tensors["weight1"]))

    def reference_anchors(self, tensors: Tensors) -> tuple[AnchorFunction, ...]:
        """Return the functions of both steps `conv`."""

        def depthwise(value: torch.Tensor) -> torch.Tensor:
            filters = tensors["weight2"]
            return as_nhwc(F.conv2d(as_nchw(value), filters, None, self.stride, self.pad, groups=self.hidden))

        def project(value: torch.Tensor) -> torch.Tensor:
            return as_nhwc(F.conv2d(as_nchw(value), tensors["weight3"]))

        return (depthwise, project)
