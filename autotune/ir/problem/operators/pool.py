"""Pools: of a window that slides, and of the whole image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autotune.core import ProblemError
from autotune.ir.problem.base import Images, Operand
from autotune.ir.problem.window import output_extent


@dataclass(frozen=True, kw_only=True)
class Pool2d(Images):
    """What the pools share: a window that slides over x (n, h, w, c) and makes y (n, p, q, c)."""

    r: int
    s: int
    stride: tuple[int, int]
    pad: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 2 * self.pad[0] > self.r or 2 * self.pad[1] > self.s:
            raise ProblemError(f"'{self}': the padding must be at most half the window")
        if min(self.p, self.q) < 1:
            raise ProblemError(f"'{self}': the window is larger than the padded input")

    @property
    def p(self) -> int:
        """Output height."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0])

    @property
    def q(self) -> int:
        """Output width."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, p, q, c)."""
        return (self.n, self.p, self.q, self.c)

    @property
    def flops(self) -> int:
        """One addition or comparison a tap."""
        n, p, q, c = self.output_shape
        return n * p * q * c * self.r * self.s

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x,)


@dataclass(frozen=True, kw_only=True)
class AvgPool2d(Pool2d):
    """Average pooling with the padding counted: x (n, h, w, c), y (n, p, q, c)."""

    operator: ClassVar[str] = "avg_pool2d"


@dataclass(frozen=True, kw_only=True)
class MaxPool2d(Pool2d):
    """Max pooling: x (n, h, w, c), y (n, p, q, c). Padding is below every value; ceil=1 is torch's ceil_mode."""

    operator: ClassVar[str] = "max_pool2d"
    ceil: int = 0

    @property
    def p(self) -> int:
        """Output height."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0], ceil=self.ceil)

    @property
    def q(self) -> int:
        """Output width."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1], ceil=self.ceil)


@dataclass(frozen=True, kw_only=True)
class GlobalAvgPool2d(Images):
    """The mean of all pixels: x (n, h, w, c), y (n, 1, 1, c), which is the x (n, c) of a gemm."""

    operator: ClassVar[str] = "global_avg_pool2d"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, 1, 1, c)."""
        return (self.n, 1, 1, self.c)

    @property
    def flops(self) -> int:
        """One addition a pixel and channel."""
        return self.n * self.h * self.w * self.c

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x,)
