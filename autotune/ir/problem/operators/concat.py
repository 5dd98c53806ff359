"""Concatenation of channels, of ranges of channels, and their shuffle."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from autotune.core import ProblemError
from autotune.ir.problem.base import Operand, Problem, Tensors
from autotune.ir.problem.dtypes import DTYPES
from autotune.ir.problem.fields import FieldType
from autotune.ir.problem.registry import register

MAX_PIECES = 8
"""Most pieces of one problem (AT_MAX_PIECES of templates/concat.h). The other seven of MAX_OPERANDS are left for the
output and the epilogue."""


@dataclass(frozen=True)
class Piece:
    """Channels `first` to `end` of a tensor with `pitch` channels in memory."""

    pitch: int
    first: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end <= self.pitch:
            raise ProblemError(f"the piece {self} must have 0 <= first < end <= channels of its tensor")

    @classmethod
    def whole(cls, channels: int) -> Piece:
        """Return the piece with all channels of a tensor."""
        return cls(channels, 0, channels)

    @property
    def count(self) -> int:
        """Return the number of channels."""
        return self.end - self.first

    def __str__(self) -> str:
        return str(self.pitch) if self.count == self.pitch else f"{self.first}:{self.end}/{self.pitch}"


def _read_pieces(text: str) -> tuple[Piece, ...]:
    return tuple(map(_read_piece, text.split(",")))


def _read_piece(text: str) -> Piece:
    if found := re.fullmatch(r"(\d+):(\d+)/(\d+)", text):
        first, end, pitch = map(int, found.groups())
        return Piece(pitch, first, end)
    return Piece.whole(int(text))


def _check_pieces(name: str, pieces: Sequence[Piece]) -> None:
    if not 1 <= len(pieces) <= MAX_PIECES:
        raise ProblemError(f"{name} has {len(pieces)} pieces; 1 to {MAX_PIECES} are possible")


_PIECES = FieldType(
    "C,C,...",
    "numbers of channels such as 64,32, or ranges of them such as 0:58/116",
    _read_pieces,
    _check_pieces,
    lambda pieces: ",".join(map(str, pieces)),
)


@register
@dataclass(frozen=True, kw_only=True)
class Concat(Problem):
    """Concatenation: y (n, h, w, c) has the channels of all pieces in order; c is their sum.

    A piece is a number of channels, of an input (n, h, w, channels), or a range of the channels of a wider input:
    `0:58/116` has the first 58 of 116. With interleave=g the channels are shuffled after that: y is the concatenation
    as g groups of channels, of which it takes one channel each in turn.
    """

    operator: ClassVar[str] = "concat"
    sizes: ClassVar[str] = " ".join(
        ["n", "h", "w", "c", "interleave", "count"]
        + [f"{field}{i}" for field in ("pitch", "first", "end") for i in range(MAX_PIECES)]
    )
    broadcasts: ClassVar[bool] = True
    n: int
    h: int
    w: int
    pieces: Annotated[tuple[Piece, ...], _PIECES]
    interleave: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c % self.interleave:
            raise ProblemError(f"'{self}': its {self.c} channels are not {self.interleave} groups of equal size")

    @property
    def c(self) -> int:
        """Return the number of channels of the output."""
        return sum(piece.count for piece in self.pieces)

    @property
    def ends(self) -> tuple[int, ...]:
        """Return for each piece the channel of the concatenation behind its last one."""
        return tuple(sum(piece.count for piece in self.pieces[: i + 1]) for i in range(len(self.pieces)))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h, w, c)."""
        return (self.n, self.h, self.w, self.c)

    @property
    def flops(self) -> int:
        """Return 0: only memory bounds it."""
        return 0

    @property
    def bytes(self) -> int:
        """Return the smallest number of bytes to move: each channel of the pieces, and every other operand, once."""
        read = math.prod(self.output_shape) * DTYPES[self.dtype].itemsize
        return read + sum(operand.bytes for operand in self.operands()[len(self.pieces) :])

    @property
    def short_name(self) -> str:
        """Return the pieces, the shuffle and the image."""
        shuffle = f" shuffle {self.interleave}" if self.interleave > 1 else ""
        return f"concat {'+'.join(map(str, self.pieces))}{shuffle} @{self.h}x{self.w}"

    def struct_values(self) -> tuple[int, ...]:
        """Return the sizes; those of absent pieces are 0, and their end is that of the last piece."""
        count, absent = len(self.pieces), MAX_PIECES - len(self.pieces)
        pitch = [piece.pitch for piece in self.pieces] + [0] * absent
        first = [piece.first for piece in self.pieces] + [0] * absent
        return (self.n, self.h, self.w, self.c, self.interleave, count, *pitch, *first, *self.ends, *[self.c] * absent)

    def _inputs(self) -> tuple[Operand, ...]:
        return tuple(
            Operand(f"x{i}", "input", (self.n, self.h, self.w, piece.pitch), self.dtype)
            for i, piece in enumerate(self.pieces)
        )

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Concatenate and shuffle."""
        parts = [tensors[f"x{i}"][..., piece.first : piece.end] for i, piece in enumerate(self.pieces)]
        whole = torch.cat(parts, -1)
        groups = whole.reshape(*whole.shape[:-1], self.interleave, self.c // self.interleave)
        return groups.transpose(-1, -2).flatten(-2)
