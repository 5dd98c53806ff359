"""The base of operators that read several tensors as one, with their channels side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from autotune.core import ProblemError
from autotune.ir.problem.base import Operand, Problem, Tensors, problem_class
from autotune.ir.problem.fields import DTYPES, FieldType

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


PIECES = FieldType(
    "C,C,...",
    "numbers of channels such as 64,32, or ranges of them such as 0:58/116",
    _read_pieces,
    _check_pieces,
    lambda pieces: ",".join(map(str, pieces)),
)

PIECE_SIZES = " ".join(f"{field}{i}" for field in ("pitch", "first", "end") for i in range(MAX_PIECES))
"""The int32 fields of a C struct that describe the pieces, as `Concatenation.piece_values` yields them."""


@problem_class
class Concatenation(Problem):
    """An operator whose input is a concatenation (n, h, w, c) of the channels of several tensors.

    A piece is a number of channels, of an input (n, h, w, channels), or a range of the channels of a wider input:
    `0:58/116` has the first 58 of 116. c is the sum of the pieces' channels.
    """

    size_fields: ClassVar[tuple[str, ...]] = ("h", "w")
    n: int
    h: int
    w: int
    pieces: Annotated[tuple[Piece, ...], PIECES]

    @property
    def c(self) -> int:
        """Return the number of channels of the concatenation."""
        return sum(piece.count for piece in self.pieces)

    @property
    def ends(self) -> tuple[int, ...]:
        """Return for each piece the channel of the concatenation behind its last one."""
        return tuple(sum(piece.count for piece in self.pieces[: i + 1]) for i in range(len(self.pieces)))

    @property
    def bytes(self) -> int:
        """Return the smallest number of bytes to move: each channel of the pieces, and every other operand, once."""
        read = self.n * self.h * self.w * self.c * DTYPES[self.dtype].itemsize
        return read + sum(operand.bytes for operand in self.operands()[len(self.pieces) :])

    @property
    def piece_values(self) -> tuple[int, ...]:
        """Return the values of PIECE_SIZES; those of absent pieces are 0, and their end is that of the last piece."""
        absent = MAX_PIECES - len(self.pieces)
        pitch = [piece.pitch for piece in self.pieces] + [0] * absent
        first = [piece.first for piece in self.pieces] + [0] * absent
        return (*pitch, *first, *self.ends, *[self.c] * absent)

    def _inputs(self) -> tuple[Operand, ...]:
        return tuple(
            Operand(f"x{i}", "input", (self.n, self.h, self.w, piece.pitch), self.dtype)
            for i, piece in enumerate(self.pieces)
        )

    def concatenated(self, tensors: Tensors) -> torch.Tensor:
        """Return the concatenation of the pieces (n, h, w, c)."""
        parts = [tensors[f"x{i}"][..., piece.first : piece.end] for i, piece in enumerate(self.pieces)]
        return torch.cat(parts, -1)
