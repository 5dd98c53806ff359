"""Max pool in training: the largest values, and their places."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.core import ProblemError
from autotune.ir.operators.pool2d import CeilPool2d
from autotune.ir.problem.base import Operand, Tensors, as_nchw, as_nhwc, problem_class
from autotune.ir.problem.registry import register

MOST_PLACES = 128
"""Values of a window whose places fit a signed byte."""


@problem_class
class PoolWithPlaces(CeilPool2d):
    """A max pool whose places of largest values are known, or its gradient."""

    has_epilogue: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.r * self.s > MOST_PLACES:
            raise ProblemError(f"'{self}': a window has at most {MOST_PLACES} values, so that a byte holds a place")

    def _places(self, role: str) -> Operand:
        """Return the places (n, p, q, c)."""
        return Operand("places", role, (self.n, self.p, self.q, self.c), "s8")


@register
class MaxPool2dPlaces(PoolWithPlaces):
    """Max pooling in training: x (n, h, w, c), y (n, p, q, c), and places (n, p, q, c) in s8 for the gradient.

    A place is the number of a window's first largest value. Values count row by row, padding included, so that the
    value in row i and column j of a window has the number i s + j. As in torch, NaN is larger than any number, and the
    last NaN of a window counts.
    """

    operator: ClassVar[str] = "max_pool2d_places"

    @property
    def short_name(self) -> str:
        """Return the window, the channels and the image."""
        return f"max with places {self._window_name}"

    def operands(self) -> tuple[Operand, ...]:
        """Return all tensors in the order of a kernel's pointers: `x`, `y` and `places`."""
        return (*super().operands(), self._places("output"))

    def _pooled(self, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the largest values, and their pixels in the image, by torch's own function."""
        x, window = as_nchw(tensors["x"]), (self.r, self.s)
        y, pixels = F.max_pool2d(x, window, self.stride, self.pad, ceil_mode=bool(self.ceil), return_indices=True)
        return as_nhwc(y), as_nhwc(pixels)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Take the largest value of each window."""
        return self._pooled(tensors)[0]

    def reference_outputs(
        self, tensors: Tensors, y: torch.Tensor, scalars: tuple[float, ...]
    ) -> dict[str, torch.Tensor]:
        """Return the places."""
        _, pixels = self._pooled(tensors)
        rows = torch.arange(self.p, device=y.device)[:, None, None] * self.stride[0] - self.pad[0]
        columns = torch.arange(self.q, device=y.device)[:, None] * self.stride[1] - self.pad[1]
        return {"places": ((pixels // self.w - rows) * self.s + pixels % self.w - columns).to(y.dtype)}
