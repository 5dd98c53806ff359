"""Forward convolution, and the base of convolutions and their gradients: sizes, shapes and arithmetic."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F

from autotune.core import ProblemError
from autotune.ir.problem.base import Images, Operand, Tensors, as_nchw, as_nhwc, output_extent, problem_class
from autotune.ir.problem.fields import NonNegativePair, Pair
from autotune.ir.problem.registry import register


@problem_class
class Convolution(Images):
    """A convolution or one of its gradients; all sizes are those of the forward pass.

    By default it is the forward pass: of x (n, h, w, c) and weight (k, c/groups, r, s).
    """

    sizes: ClassVar[str] = "n h w c k r s p q stride_h stride_w pad_h pad_w dilation_h dilation_w groups"
    struct: ClassVar[str] = "at_conv2d"
    k: int
    r: int = 1
    s: int = 1
    stride: Pair = (1, 1)
    pad: NonNegativePair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c % self.groups or self.k % self.groups:
            raise ProblemError(f"'{self}': groups must divide both c and k")
        if min(self.p, self.q) < 1:
            raise ProblemError(f"'{self}': the window is larger than the padded input")

    @property
    def p(self) -> int:
        """Return the height of the forward pass's output."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0], self.dilation[0])

    @property
    def q(self) -> int:
        """Return the width of the forward pass's output."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1], self.dilation[1])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, p, q, k), the shape of the forward pass's output."""
        return self._dy.shape

    @property
    def is_pointwise(self) -> bool:
        """Return whether each output pixel depends on the one input pixel at its position."""
        return (self.r, self.s, self.stride, self.pad) == (1, 1, (1, 1), (0, 0))

    @property
    def is_product(self) -> bool:
        """Return whether it is one matrix product of all pixels: pointwise, and without groups."""
        return self.is_pointwise and self.groups == 1

    @property
    def flops(self) -> int:
        """Return 2 n p q k r s c/groups, the same in each pass."""
        return 2 * self.n * self.p * self.q * self.k * self.r * self.s * self.c // self.groups

    @property
    def short_name(self) -> str:
        """Return the gradient's kind if it is one, the window, the channels and the image."""
        kind = [self.operator.removeprefix("conv2d_")] if self.operator != "conv2d" else []
        window = f"{self.r}x{self.s}/{self.stride[0]} {self.c}>{self.k} @{self.h}x{self.w}"
        return " ".join([*kind, window, *([f"g{self.groups}"] if self.groups > 1 else [])])

    @property
    def geometry(self) -> tuple[Pair, Pair, Pair, int]:
        """Return stride, padding, dilation and groups, as torch's convolutions take them."""
        return self.stride, self.pad, self.dilation, self.groups

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x, self._weight)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Convolve."""
        return self.convolve(tensors["x"], tensors["weight"])

    def convolve(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the forward pass of x (n, h, w, c) with weight (channels, c/groups, r, s): (n, p, q, channels)."""
        return as_nhwc(F.conv2d(as_nchw(x), weight, None, *self.geometry))

    def gradient(
        self, of: Literal["x", "weight"], dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        """Return the gradient with respect to x (n, c, h, w) or to weight (k, c/groups, r, s).

        Of the tensor itself only the shape matters, but its elements must be written: torch copies them.
        """
        wanted = (of == "x", of == "weight", False)
        found: tuple[torch.Tensor, ...] = torch.ops.aten.convolution_backward(
            dy, x, weight, None, self.stride, self.pad, self.dilation, False, (0, 0), self.groups, wanted
        )
        return found[wanted.index(True)]

    @property
    def _weight(self) -> Operand:
        return Operand("weight", "weight", (self.k, self.c // self.groups, self.r, self.s), self.dtype)

    @property
    def _dy(self) -> Operand:
        return Operand("dy", "input", (self.n, self.p, self.q, self.k), self.dtype)


@register
class Conv2d(Convolution):
    """Forward convolution (cross-correlation): x (n, h, w, c), weight (k, c/groups, r, s), y (n, p, q, k)."""

    operator: ClassVar[str] = "conv2d"
