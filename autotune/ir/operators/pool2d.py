"""The base of pools with a sliding window."""

from __future__ import annotations

from typing import ClassVar

from autotune.core import ProblemError
from autotune.ir.problem.base import Images, Windowed, output_extent, problem_class
from autotune.ir.problem.fields import NonNegative, NonNegativePair, Pair


@problem_class
class Pool2d(Windowed, Images):
    """A pool with a window that slides over x (n, h, w, c) and makes y (n, p, q, c)."""

    sizes: ClassVar[str] = "n h w c r s p q stride_h stride_w pad_h pad_w"
    struct: ClassVar[str] = "at_pool2d"
    r: int
    s: int
    stride: Pair
    pad: NonNegativePair = (0, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 2 * self.pad[0] > self.r or 2 * self.pad[1] > self.s:
            raise ProblemError(f"'{self}': the padding must be at most half the window")
        if min(self.p, self.q) < 1:
            raise ProblemError(f"'{self}': the window is larger than the padded input")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, p, q, c)."""
        return (self.n, self.p, self.q, self.c)

    @property
    def flops(self) -> int:
        """Return one addition or comparison per tap: n p q c r s."""
        n, p, q, c = self.output_shape
        return n * p * q * c * self.r * self.s

    @property
    def _window_name(self) -> str:
        return f"{self.r}x{self.s}/{self.stride[0]} {self.c} @{self.h}x{self.w}"


@problem_class
class CeilPool2d(Pool2d):
    """A pool that may have torch's ceil_mode: with ceil=1, a last window that ends beyond the padding also counts."""

    ceil: NonNegative = 0

    @property
    def p(self) -> int:
        """Return the output height."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0], ceil=self.ceil)

    @property
    def q(self) -> int:
        """Return the output width."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1], ceil=self.ceil)
