"""Matrix product."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.operators.conv2d import Conv2d
from autotune.ir.problem.base import Operand, Problem, Tensors
from autotune.ir.problem.registry import register


@register
class Gemm(Problem):
    """Matrix product of a linear layer: x (m, k), weight (n, k) as torch.nn.Linear has it, y = x weight^T (m, n).

    Kernels receive it as the 1x1 convolution of m images of one pixel.
    """

    operator: ClassVar[str] = "gemm"
    sizes: ClassVar[str] = Conv2d.sizes
    struct: ClassVar[str] = Conv2d.struct
    batch_field: ClassVar[str] = "m"
    m: int
    n: int
    k: int

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (m, n)."""
        return (self.m, self.n)

    @property
    def flops(self) -> int:
        """Return 2 m n k."""
        return 2 * self.m * self.n * self.k

    @property
    def short_name(self) -> str:
        """Return the sizes of the matrices."""
        return f"gemm {self.k}>{self.n} @{self.m}"

    @cached_property
    def as_conv2d(self) -> Conv2d:
        """Return the same product as a 1x1 convolution of m images of one pixel."""
        return Conv2d(n=self.m, h=1, w=1, c=self.k, k=self.n, dtype=self.dtype, epilogue=self.epilogue)

    def struct_values(self) -> tuple[int, ...]:
        """Return the sizes of the convolution."""
        return self.as_conv2d.struct_values()

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            Operand("x", "input", (self.m, self.k), self.dtype),
            Operand("weight", "weight", (self.n, self.k), self.dtype),
        )

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Multiply."""
        return F.linear(tensors["x"], tensors["weight"])
