"""Two convolutions, the second of which reads the first one's result, as in residual blocks."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.core import ProblemError
from autotune.ir.epilogue import AnchorFunction, Argument, Epilogue
from autotune.ir.problem.base import Images, Operand, Tensors, as_nchw, as_nhwc, output_extent
from autotune.ir.problem.fields import NonNegativePair, Pair
from autotune.ir.problem.registry import register

_CONV = Epilogue(("conv",))


@register
class Conv2dPair(Images):
    """Two convolutions with steps between them, such as both of a ResNet's basic block.

    x (n, h, w, c) is convolved with weight1 (hidden, c, first_r, first_s), the stride first_stride and the padding
    first_pad. In the epilogue, the step `conv` stands where the value so far is convolved with weight2 (k, hidden, r,
    s): "bias,relu,conv,bias,add,relu". The steps before it read no tensors but vectors of `hidden` channels. The
    convolutions have no groups and no dilation.
    """

    operator: ClassVar[str] = "conv2d_pair"
    sizes: ClassVar[str] = (
        "n h w c hidden hidden_h hidden_w k first_r first_s r s p q first_stride_h first_stride_w "
        "first_pad_h first_pad_w stride_h stride_w pad_h pad_w"
    )
    anchors: ClassVar[tuple[str, ...]] = ("conv",)
    hidden: int
    k: int
    first_r: int = 1
    first_s: int = 1
    first_stride: Pair = (1, 1)
    first_pad: NonNegativePair = (0, 0)
    r: int = 1
    s: int = 1
    stride: Pair = (1, 1)
    pad: NonNegativePair = (0, 0)
    epilogue: Epilogue = _CONV

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.hidden_h, self.hidden_w) < 1:
            raise ProblemError(f"'{self}' has no hidden tensor: its first window is larger than its padded input")
        if self.epilogue.accesses_tensors_early:
            raise ProblemError(f"'{self}': steps before conv can read vectors, but no tensors, and store nothing")

    @property
    def hidden_h(self) -> int:
        """Return the height of the hidden tensor."""
        return output_extent(self.h, self.first_r, self.first_stride[0], self.first_pad[0])

    @property
    def hidden_w(self) -> int:
        """Return the width of the hidden tensor."""
        return output_extent(self.w, self.first_s, self.first_stride[1], self.first_pad[1])

    @property
    def p(self) -> int:
        """Return the output height."""
        return output_extent(self.hidden_h, self.r, self.stride[0], self.pad[0])

    @property
    def q(self) -> int:
        """Return the output width."""
        return output_extent(self.hidden_w, self.s, self.stride[1], self.pad[1])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, p, q, k)."""
        return (self.n, self.p, self.q, self.k)

    @property
    def roundings(self) -> int:
        """Return 2: the hidden tensor is rounded too."""
        return 2

    @property
    def flops(self) -> int:
        """Return those of both convolutions."""
        first = self.hidden_h * self.hidden_w * self.first_r * self.first_s * self.c
        return 2 * self.n * self.hidden * (first + self.p * self.q * self.r * self.s * self.k)

    @property
    def short_name(self) -> str:
        """Return the filters, the channels and the image."""
        filters = f"{self.first_r}x{self.first_s}/{self.first_stride[0]} + {self.r}x{self.s}/{self.stride[0]}"
        return f"{filters} {self.c}>{self.hidden}>{self.k} @{self.h}x{self.w}"

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._x,
            Operand("weight1", "weight", (self.hidden, self.c, self.first_r, self.first_s), self.dtype),
            Operand("weight2", "weight", (self.k, self.hidden, self.r, self.s), self.dtype),
        )

    def _shape_at(self, argument: Argument) -> tuple[int, ...]:
        early = any(argument in step.arguments for step in self.epilogue.parts[0])
        return (self.n, self.hidden_h, self.hidden_w, self.hidden) if early else self.output_shape

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the first convolution."""
        return as_nhwc(F.conv2d(as_nchw(tensors["x"]), tensors["weight1"], None, self.first_stride, self.first_pad))

    def reference_anchors(self, tensors: Tensors) -> tuple[AnchorFunction, ...]:
        """Return the function of `conv`."""

        def convolve(value: torch.Tensor) -> torch.Tensor:
            return as_nhwc(F.conv2d(as_nchw(value), tensors["weight2"], None, self.stride, self.pad))

        return (convolve,)
