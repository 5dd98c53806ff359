"""What needs hardly any arithmetic: a chain alone, another dtype, and images put in another order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autotune.core import ProblemError, require_one_of
from autotune.ir.problem.base import Images, Operand
from autotune.ir.problem.dtypes import DTYPES


class _PerPixel(Images):
    """Each pixel of y is of the one of x at its place."""

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h, w, c)."""
        return (self.n, self.h, self.w, self.c)

    @property
    def flops(self) -> int:
        """None: memory alone bounds it."""
        return 0

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x,)


class _Reordered(Images):
    """Pixels in torch's order, put in another."""

    @property
    def flops(self) -> int:
        """None: data only moves."""
        return 0

    def _inputs(self) -> tuple[Operand, ...]:
        return (self._x_nchw,)


@dataclass(frozen=True, kw_only=True)
class Elementwise(_PerPixel):
    """An epilogue of its own, where there is no kernel to append it to: y = epilogue(x), both (n, h, w, c)."""

    operator: ClassVar[str] = "elementwise"


@dataclass(frozen=True, kw_only=True)
class Cast(_PerPixel):
    """Another dtype: y = epilogue(x), both (n, h, w, c), x in `dtype`, y and the epilogue's tensors in `result`.

    So values become signed bytes, and bytes values: "mul_scalar" is by what a byte stands for.
    """

    operator: ClassVar[str] = "cast"
    result: str

    def __post_init__(self) -> None:
        require_one_of("dtype", self.result, list(DTYPES))
        super().__post_init__()

    @property
    def output_dtype(self) -> str:
        """`result`."""
        return self.result


@dataclass(frozen=True, kw_only=True)
class ToChannelsLast(_Reordered):
    """NCHW to NHWC: x (n, c, h, w) in torch's order, y (n, h, w, to); before the epilogue, channels from c on are 0."""

    operator: ClassVar[str] = "to_channels_last"
    to: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to < self.c:
            raise ProblemError(f"'{self}': to must be at least c")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h, w, to)."""
        return (self.n, self.h, self.w, self.to)


@dataclass(frozen=True, kw_only=True)
class SpaceToDepth(_Reordered):
    """Moves block x block patches to channels, and NCHW to NHWC.

    x (n, c, h, w) in torch's order; y (n, h/block, w/block, block*block*c), output channel
    (dy*block + dx)*c + channel.
    """

    operator: ClassVar[str] = "space_to_depth"
    block: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.h % self.block or self.w % self.block:
            raise ProblemError(f"'{self}': block must divide both h and w")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(n, h/block, w/block, block*block*c)."""
        return (self.n, self.h // self.block, self.w // self.block, self.block * self.block * self.c)
