"""Residual block with squeeze-and-excitation that halves its image."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.epilogue import AnchorFunction, Epilogue
from autotune.ir.operators.conv2d_se import Conv2dSe
from autotune.ir.operators.se_gate import apply_gate, gate_operands
from autotune.ir.operators.se_resnet9.conv3x3 import conv3x3
from autotune.ir.problem.base import Images, Operand, Tensors, as_nchw, as_nhwc, output_extent
from autotune.ir.problem.registry import register

_CONV_GATE_AND_PROJECT = Epilogue(("conv", "gate", "project"))


@register
class SeDownBlock(Images):
    """A residual block that halves its image: as se_block, but with stride 2, and with a projection as its identity.

    x (n, h, w, c) is convolved with weight1 (k, c, 3, 3), stride 2 and padding 1. In the epilogue, `conv` stands where
    the value so far is convolved with weight2 (k, k, 3, 3), stride and padding 1, `gate` where it is scaled as by
    conv2d_se, and `project` where the identity is added: the mean of x over 3x3 pixels, stride 2 and padding 1, which
    counts, followed by a 1x1 convolution with `projection` (k, c, 1, 1): "bias,relu,conv,bias,gate,project,relu".
    """

    operator: ClassVar[str] = "se_down_block"
    sizes: ClassVar[str] = Conv2dSe.sizes
    struct: ClassVar[str] = Conv2dSe.struct
    anchors: ClassVar[tuple[str, ...]] = ("conv", "gate", "project")
    r: ClassVar[int] = 3
    s: ClassVar[int] = 3
    stride: ClassVar[tuple[int, int]] = (2, 2)
    pad: ClassVar[tuple[int, int]] = (1, 1)
    dilation: ClassVar[tuple[int, int]] = (1, 1)
    groups: ClassVar[int] = 1
    k: int
    hidden: int
    epilogue: Epilogue = _CONV_GATE_AND_PROJECT

    @property
    def p(self) -> int:
        """Return the output height."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0])

    @property
    def q(self) -> int:
        """Return the output width."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, p, q, k)."""
        return (self.n, self.p, self.q, self.k)

    @property
    def flops(self) -> int:
        """Return those of the three convolutions, the pool, the mean, the scaling and the two matrix products."""
        products = 9 * self.c * self.k + 9 * self.k**2 + self.c * self.k
        per_pixel = 2 * products + 9 * self.c + 2 * self.k
        return self.n * (self.p * self.q * per_pixel + 4 * self.k * self.hidden)

    @property
    def short_name(self) -> str:
        """Return the channels and the image."""
        return f"block/2 {self.c}>{self.k} @{self.h}x{self.w}"

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._x,
            Operand("weight1", "weight", (self.k, self.c, 3, 3), self.dtype),
            Operand("weight2", "weight", (self.k, self.k, 3, 3), self.dtype),
            Operand("projection", "weight", (self.k, self.c, 1, 1), self.dtype),
            *gate_operands(self.k, self.hidden, self.dtype),
        )

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the first convolution."""
        return conv3x3(tensors["x"], tensors["weight1"], stride=2)

    def reference_anchors(self, tensors: Tensors) -> tuple[AnchorFunction, ...]:
        """Return the functions of `conv`, `gate` and `project`."""

        def project(value: torch.Tensor) -> torch.Tensor:
            pooled = F.avg_pool2d(as_nchw(tensors["x"]), 3, 2, 1)
            return value + as_nhwc(F.conv2d(pooled, tensors["projection"]))

        return (
            lambda value: conv3x3(value, tensors["weight2"]),
            lambda value: apply_gate(value, tensors),
            project,
        )
