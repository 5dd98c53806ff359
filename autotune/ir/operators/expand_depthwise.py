"""A 1x1 convolution that widens the channels, and the depthwise convolution after it, as in inverted residuals."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.epilogue import AnchorFunction, Epilogue
from autotune.ir.operators.conv2d import Convolution
from autotune.ir.problem.base import Images, Operand, Tensors, Windowed, as_nchw, as_nhwc
from autotune.ir.problem.fields import NonNegativePair, Pair
from autotune.ir.problem.registry import register

_CONV = Epilogue(("conv",))


@register
class ExpandDepthwise(Windowed, Images):
    """A 1x1 convolution and the depthwise convolution that reads its result, as in MobileNetV2 and EfficientNet.

    x (n, h, w, c) is convolved with weight1 (k, c, 1, 1). In the epilogue, the step `conv` stands where the value so
    far is convolved with weight2 (k, 1, r, s), one filter for each channel: "bias,silu,conv,bias,silu". Stride and
    padding are those of the second convolution.
    """

    operator: ClassVar[str] = "expand_depthwise"
    sizes: ClassVar[str] = Convolution.sizes
    struct: ClassVar[str] = "at_conv2d"
    anchors: ClassVar[tuple[str, ...]] = ("conv",)
    k: int
    r: int
    s: int
    stride: Pair = (1, 1)
    pad: NonNegativePair = (0, 0)
    epilogue: Epilogue = _CONV

    @property
    def dilation(self) -> tuple[int, int]:
        """Return (1, 1), for the C struct."""
        return (1, 1)

    @property
    def groups(self) -> int:
        """Return those of the second convolution: one for each channel."""
        return self.k

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, p, q, k)."""
        return (self.n, self.p, self.q, self.k)

    @property
    def flops(self) -> int:
        """Return those of both convolutions."""
        return 2 * self.n * self.k * (self.h * self.w * self.c + self.p * self.q * self.r * self.s)

    @property
    def short_name(self) -> str:
        """Return the channels, the filter and the image."""
        return f"expand {self.c}>{self.k} dw {self.r}x{self.s}/{self.stride[0]} @{self.h}x{self.w}"

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._x,
            Operand("weight1", "weight", (self.k, self.c, 1, 1), self.dtype),
            Operand("weight2", "weight", (self.k, 1, self.r, self.s), self.dtype),
        )

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the first convolution."""
        return as_nhwc(F.conv2d(as_nchw(tensors["x"]), tensors["weight1"]))

    def reference_anchors(self, tensors: Tensors) -> tuple[AnchorFunction, ...]:
        """Return the function of `conv`."""

        def depthwise(value: torch.Tensor) -> torch.Tensor:
            filters = tensors["weight2"]
            return as_nhwc(F.conv2d(as_nchw(value), filters, None, self.stride, self.pad, groups=self.k))

        return (depthwise,)
