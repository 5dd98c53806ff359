"""The base of convolutions that compute a part of a batch normalization in training."""

from __future__ import annotations

from typing import ClassVar

from autotune.ir.operators.conv2d import Conv2d, Convolution
from autotune.ir.problem.base import problem_class


@problem_class
class Conv2dWithNorm(Convolution):
    """A convolution of x (n, h, w, c) with weight (k, c/groups, r, s), and a part of a batch normalization."""

    has_epilogue: ClassVar[bool] = False

    @property
    def convolution(self) -> Conv2d:
        """Return the convolution alone."""
        return Conv2d(
            n=self.n, h=self.h, w=self.w, c=self.c, k=self.k, r=self.r, s=self.s, stride=self.stride, pad=self.pad,
            dilation=self.dilation, groups=self.groups, dtype=self.dtype,
        )  # fmt: skip
