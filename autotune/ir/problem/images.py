"""The base of problems on images, and conversions between the orders of their axes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autotune.ir.problem.base import Operand, Problem


@dataclass(frozen=True, kw_only=True)
class Images(Problem):
    """A problem on n images of h x w pixels with c channels."""

    n: int
    h: int
    w: int
    c: int

    @property
    def _x(self) -> Operand:
        """Return the input (n, h, w, c)."""
        return Operand("x", "input", (self.n, self.h, self.w, self.c), self.dtype)

    @property
    def _x_nchw(self) -> Operand:
        """Return the input (n, c, h, w), in torch's order."""
        return Operand("x", "input", (self.n, self.c, self.h, self.w), self.dtype)


def as_nchw(x: torch.Tensor) -> torch.Tensor:
    """Return a view of (n, h, w, c) as (n, c, h, w).

    One channel gets the stride that torch gives it in a new tensor: the attention of CUDA refuses a stride of 1 there.
    """
    n, h, w, c = x.shape
    return x.reshape(n, c, h, w) if c == 1 else x.permute(0, 3, 1, 2)


def as_nhwc(x: torch.Tensor) -> torch.Tensor:
    """Return a view of (n, c, h, w) as (n, h, w, c)."""
    return x.permute(0, 2, 3, 1)
