"""The base of the first layers of a network: a convolution of the image, and a max pool."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.core import ProblemError
from autotune.ir.problem.base import Images, Operand, Tensors, as_nhwc, output_extent, problem_class
from autotune.ir.problem.fields import NonNegative, NonNegativePair, Pair


@problem_class
class FirstLayers(Images):
    """A convolution of an image in torch's order, and a max pool."""

    struct: ClassVar[str] = "at_stem"
    sizes: ClassVar[str] = "n h w c k r s p q stride_h stride_w pad_h pad_w pool pool_stride pool_pad"
    k: int
    r: int
    s: int
    stride: Pair = (1, 1)
    pad: NonNegativePair = (0, 0)
    pool: int = 1
    pool_stride: int = 1
    pool_pad: NonNegative = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if 2 * self.pool_pad > self.pool:
            raise ProblemError(f"'{self}': the pool's padding must be at most half its window")
        if min(self.conv_p, self.conv_q, self.p, self.q) < 1:
            raise ProblemError(f"'{self}': a window is larger than its padded input")

    @property
    def conv_p(self) -> int:
        """Return the height of the convolution's result."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0])

    @property
    def conv_q(self) -> int:
        """Return the width of the convolution's result."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1])

    @property
    def p(self) -> int:
        """Return the output height."""
        return output_extent(self.conv_p, self.pool, self.pool_stride, self.pool_pad)

    @property
    def q(self) -> int:
        """Return the output width."""
        return output_extent(self.conv_q, self.pool, self.pool_stride, self.pool_pad)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, p, q, k)."""
        return (self.n, self.p, self.q, self.k)

    @property
    def flops(self) -> int:
        """Return those of the convolution: 2 n conv_p conv_q k r s c."""
        return 2 * self.n * self.conv_p * self.conv_q * self.k * self.r * self.s * self.c

    @property
    def short_name(self) -> str:
        """Return the convolution's window, the channels and the image."""
        return f"stem {self.r}x{self.s}/{self.stride[0]} {self.c}>{self.k} @{self.h}x{self.w}"

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._x_nchw,
            Operand("weight", "weight", (self.k, self.c, self.r, self.s), self.dtype),
        )

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Convolve, then pool."""
        return as_nhwc(self.max_pool(F.conv2d(tensors["x"], tensors["weight"], None, self.stride, self.pad)))

    def max_pool(self, value: torch.Tensor) -> torch.Tensor:
        """Return the pool of the convolution's result (n, k, conv_p, conv_q), in the same order of axes."""
        if self.pool == self.pool_stride == 1:
            return value
        return F.max_pool2d(value, self.pool, self.pool_stride, self.pool_pad)
