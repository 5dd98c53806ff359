"""The three passes of a convolution, and what kernels are told of as one: a matrix product, patches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from autotune.core import ProblemError
from autotune.ir.problem.base import Images, Operand, Problem
from autotune.ir.problem.window import output_extent


@dataclass(frozen=True, kw_only=True)
class Convolution(Images):
    """What the three passes of one convolution share: its sizes, those of the forward pass, and its arithmetic."""

    k: int
    r: int = 1
    s: int = 1
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c % self.groups or self.k % self.groups:
            raise ProblemError(f"'{self}': groups must divide both c and k")
        if min(self.p, self.q) < 1:
            raise ProblemError(f"'{self}': the window is larger than the padded input")

    @property
    def p(self) -> int:
        """Height of the forward pass's output."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0], self.dilation[0])

    @property
    def q(self) -> int:
        """Width of the forward pass's output."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1], self.dilation[1])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, p, q, k), of the forward pass."""
        return self._dy.shape

    @property
    def is_pointwise(self) -> bool:
        """Whether each output pixel is a product of the one input pixel in its place."""
        return (self.r, self.s, self.stride, self.pad) == (1, 1, (1, 1), (0, 0))

    @property
    def flops(self) -> int:
        """2 n p q k r s c/groups, in each pass."""
        return 2 * self.n * self.p * self.q * self.k * self.r * self.s * self.c // self.groups

    @property
    def _weight(self) -> Operand:
        return Operand("weight", "weight", (self.k, self.c // self.groups, self.r, self.s), self.dtype)

    @property
    def _dy(self) -> Operand:
        return Operand("dy", "input", (self.n, self.p, self.q, self.k), self.dtype)


@dataclass(frozen=True, kw_only=True)
class Conv2d(Convolution):
    """Forward convolution (cross-correlation): x (n, h, w, c), weight (k, c/groups, r, s), y (n, p, q, k)."""

    operator: ClassVar[str] = "conv2d"

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x, self._weight)


@dataclass(frozen=True, kw_only=True)
class Conv2dDgrad(Convolution):
    """Gradient of a convolution by its input: dy (n, p, q, k), weight (k, c/groups, r, s), y = dx (n, h, w, c)."""

    operator: ClassVar[str] = "conv2d_dgrad"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h, w, c)."""
        return self._x.shape

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._dy, self._weight)


@dataclass(frozen=True, kw_only=True)
class Conv2dWgrad(Convolution):
    """Gradient of a convolution by its weight: dy (n, p, q, k), x (n, h, w, c), y = dw (k, r, s, c/groups).

    So `y` is torch's weight in channels-last order, and the channels of an epilogue are the input's of a group.
    """

    operator: ClassVar[str] = "conv2d_wgrad"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(k, r, s, c/groups)."""
        return (self.k, self.r, self.s, self.c // self.groups)

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._dy, self._x)


@dataclass(frozen=True, kw_only=True)
class Gemm(Problem):
    """Matrix product of a linear layer: x (m, k), weight (n, k) as torch.nn.Linear has it, y = x weight^T (m, n)."""

    operator: ClassVar[str] = "gemm"
    batch_field: ClassVar[str] = "m"
    m: int
    n: int
    k: int

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(m, n)."""
        return (self.m, self.n)

    @property
    def flops(self) -> int:
        """2 m n k."""
        return 2 * self.m * self.n * self.k

    @cached_property
    def as_conv2d(self) -> Conv2d:
        """The same as a 1x1 convolution of m images of one pixel, which is how kernels are told of it."""
        return Conv2d(n=self.m, h=1, w=1, c=self.k, k=self.n, dtype=self.dtype, epilogue=self.epilogue)

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            Operand("x", "input", (self.m, self.k), self.dtype),
            Operand("weight", "weight", (self.n, self.k), self.dtype),
        )


@dataclass(frozen=True, kw_only=True)
class PatchConv2d(Images):
    """Convolution of patches that do not overlap, on an image in torch's order: stride and filter are the block.

    x (n, c, h, w), weight (k, c, block, block), y (n, h/block, w/block, k).
    """

    operator: ClassVar[str] = "patch_conv2d"
    k: int
    block: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.h % self.block or self.w % self.block:
            raise ProblemError(f"'{self}': block must divide both h and w")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h/block, w/block, k)."""
        return (self.n, self.h // self.block, self.w // self.block, self.k)

    @property
    def flops(self) -> int:
        """2 n h w c k."""
        return 2 * self.n * self.h * self.w * self.c * self.k

    @property
    def as_conv2d(self) -> Conv2d:
        """The convolution that it is, apart from the order of x: how kernels are told of it."""
        block = (self.block, self.block)
        return Conv2d(
            n=self.n, h=self.h, w=self.w, c=self.c, k=self.k, r=self.block, s=self.block, stride=block,
            dtype=self.dtype, epilogue=self.epilogue,
        )  # fmt: skip

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._x_nchw,
            Operand("weight", "weight", (self.k, self.c, self.block, self.block), self.dtype),
        )
