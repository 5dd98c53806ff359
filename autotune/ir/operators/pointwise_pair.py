"""Two 1x1 convolutions, the second of which reads the first one's result: a back-to-back matrix product."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.byte_formats import BYTE_FORMATS
from autotune.ir.epilogue import AnchorFunction, Argument, Epilogue
from autotune.ir.problem.base import Images, Operand, Tensors, as_nchw, as_nhwc
from autotune.ir.problem.registry import register

_CONV = Epilogue(("conv",))


@register
class PointwisePair(Images):
    """Two 1x1 convolutions with steps between them, such as the last of a ResNet's block and the first of the next.

    x (n, h, w, c) is convolved with weight1 (hidden, c, 1, 1). In the epilogue, the step `conv` stands where the value
    so far is convolved with weight2 (k, hidden, 1, 1): "bias,add,relu,store,conv,bias,relu". The tensors of the steps
    before it have `hidden` channels. Without a `store` before it the hidden tensor is not in memory at all, as
    "bias,gelu,conv,bias,add" in the two linear layers of ConvNeXt.
    """

    operator: ClassVar[str] = "pointwise_pair"
    sizes: ClassVar[str] = "n h w c hidden k"
    anchors: ClassVar[tuple[str, ...]] = ("conv",)
    hidden: int
    k: int
    epilogue: Epilogue = _CONV

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h, w, k)."""
        return (self.n, self.h, self.w, self.k)

    @property
    def roundings(self) -> int:
        """Return 2: the hidden tensor is rounded too."""
        return 2

    @property
    def rows(self) -> int:
        """Return n h w."""
        return self.n * self.h * self.w

    @property
    def flops(self) -> int:
        """Return those of both convolutions."""
        return 2 * self.rows * self.hidden * (self.c + self.k)

    @property
    def short_name(self) -> str:
        """Return the channels and the image."""
        return f"1x1 pair {self.c}>{self.hidden}>{self.k} @{self.h}x{self.w}"

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._x,
            Operand("weight1", "weight", (self.hidden, self.c, 1, 1), self.dtype),
            Operand("weight2", "weight", (self.k, self.hidden, 1, 1), self.dtype),
        )

    def _shape_at(self, argument: Argument) -> tuple[int, ...]:
        early = any(argument in step.arguments for step in self.epilogue.parts[0])
        return (self.n, self.h, self.w, self.hidden) if early else self.output_shape

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the first convolution."""
        return as_nhwc(F.conv2d(as_nchw(tensors["x"]), tensors["weight1"]))

    def reference_anchors(self, tensors: Tensors) -> tuple[AnchorFunction, ...]:
        """Return the function of `conv`."""
        form = BYTE_FORMATS.get(self.dtype)

        def convolve(value: torch.Tensor) -> torch.Tensor:
            hidden = form.rounded(value) if form else value
            return as_nhwc(F.conv2d(as_nchw(hidden), tensors["weight2"]))

        return (convolve,)
