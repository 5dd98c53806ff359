"""Concatenation of channels, of ranges of channels, and their shuffle."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.core import ProblemError
from autotune.ir.operators.concatenation import PIECE_SIZES, Concatenation
from autotune.ir.problem.base import Tensors
from autotune.ir.problem.registry import register


@register
class Concat(Concatenation):
    """Concatenation: y (n, h, w, c) has the channels of all pieces in order; c is their sum.

    A piece is a number of channels, of an input (n, h, w, channels), or a range of the channels of a wider input:
    `0:58/116` has the first 58 of 116. With interleave=g the channels are shuffled after that: y is the concatenation
    as g groups of channels, of which it takes one channel each in turn.
    """

    operator: ClassVar[str] = "concat"
    sizes: ClassVar[str] = f"n h w c interleave count {PIECE_SIZES}"
    broadcasts: ClassVar[bool] = True
    interleave: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c % self.interleave:
            raise ProblemError(f"'{self}': its {self.c} channels are not {self.interleave} groups of equal size")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h, w, c)."""
        return (self.n, self.h, self.w, self.c)

    @property
    def flops(self) -> int:
        """Return 0: only memory bounds it."""
        return 0

    @property
    def short_name(self) -> str:
        """Return the pieces, the shuffle and the image."""
        shuffle = f" shuffle {self.interleave}" if self.interleave > 1 else ""
        return f"concat {'+'.join(map(str, self.pieces))}{shuffle} @{self.h}x{self.w}"

    def struct_values(self) -> tuple[int, ...]:
        """Return the sizes."""
        return (self.n, self.h, self.w, self.c, self.interleave, len(self.pieces), *self.piece_values)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Concatenate and shuffle."""
        whole = self.concatenated(tensors)
        groups = whole.reshape(*whole.shape[:-1], self.interleave, self.c // self.interleave)
        return groups.transpose(-1, -2).flatten(-2)
