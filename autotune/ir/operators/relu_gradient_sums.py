"""The input gradient of a ReLU, with sums over the pixels of each image."""

from __future__ import annotations

import itertools
from typing import ClassVar

import torch

from autotune.core import ProblemError
from autotune.ir.problem.base import Images, Operand, Tensors
from autotune.ir.problem.fields import NonNegative
from autotune.ir.problem.registry import register

SUMS_OF_GRADIENT, SUMS_OF_MASKED, SUMS_OF_PRODUCT, SUMS_OF_FACTOR = range(4)
"""Rows of the sums: of g, of y, of y * factor, and of factor."""


@register
class ReluGradientSums(Images):
    """The input gradient of a ReLU, y (n, h, w, c), with sums (n, rows, c) in float32 over the pixels of each image.

    The gradient g with respect to the ReLU's result is dy (n, h, w, c). With pool, the result was also the input of an
    average pool with a window of pool x pool, `stride` and `pad`, which counts the padding: then g is dy plus the input
    gradient of this pool, whose output gradient is pooled (n, p, q, c). y is g, and 0 where inactive (n, h, w, c) is
    odd: its bytes are those of a tensor of bool.

    The rows of sums add up g and y, and with product=1 also y * factor and factor (n, h, w, c).
    """

    operator: ClassVar[str] = "relu_gradient_sums"
    has_epilogue: ClassVar[bool] = False
    sizes: ClassVar[str] = "n h w c product pool stride pad p q"
    product: NonNegative = 0
    pool: NonNegative = 0
    stride: int = 1
    pad: NonNegative = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.product > 1:
            raise ProblemError(f"'{self}': product is 0 or 1")
        if self.pool == 0 and (self.stride, self.pad) != (1, 0):
            raise ProblemError(f"'{self}': stride and pad are those of a pool; without one they are 1 and 0")
        if self.pool and (2 * self.pad > self.pool or min(self.p, self.q) < 1):
            raise ProblemError(f"'{self}': pad is at most half of pool, and the padded image holds a window")

    @property
    def short_name(self) -> str:
        """Return the channels, the image, and what is fused."""
        fused = [f"pool {self.pool}x{self.pool}/{self.stride}"] * bool(self.pool) + ["product"] * self.product
        return " + ".join([f"relu gradient + sums {self.c} @{self.h}x{self.w}", *fused])

    @property
    def p(self) -> int:
        """Return the height of the pool's output; 0 without one."""
        return self._windows(self.h)

    @property
    def q(self) -> int:
        """Return the width of the pool's output; 0 without one."""
        return self._windows(self.w)

    @property
    def rows(self) -> int:
        """Return the number of sums of an image and channel."""
        return 4 if self.product else 2

    def _windows(self, side: int) -> int:
        return (side + 2 * self.pad - self.pool) // self.stride + 1 if self.pool else 0

    def _inputs(self) -> tuple[Operand, ...]:
        def image(name: str) -> Operand:
            return Operand(name, "input", self._x.shape, self.dtype)

        return (
            image("dy"),
            Operand("inactive", "input", self._x.shape, "s8"),
            *([Operand("pooled", "input", (self.n, self.p, self.q, self.c), self.dtype)] if self.pool else []),
            *([image("factor")] if self.product else []),
        )

    def operands(self) -> tuple[Operand, ...]:
        """Return dy, inactive, pooled and factor if the problem has them, y and sums."""
        return (*super().operands(), Operand("sums", "output", (self.n, self.rows, self.c), "f32"))

    def _gradient(self, tensors: Tensors) -> torch.Tensor:
        """Return g."""
        dy = tensors["dy"]
        if not self.pool:
            return dy
        # Each value of the pool's output passes 1 / pool^2 of its gradient to the pixels of its window.
        shares = tensors["pooled"] / self.pool**2
        tall, wide = ((count - 1) * self.stride + 1 for count in (self.p, self.q))  # between corners of windows
        end_h, end_w = self.pad + self.h, self.pad + self.w
        padded = dy.new_zeros(self.n, max(end_h, tall + self.pool), max(end_w, wide + self.pool), self.c)
        for i, j in itertools.product(range(self.pool), repeat=2):
            padded[:, i : i + tall : self.stride, j : j + wide : self.stride] += shares
        return dy + padded[:, self.pad : end_h, self.pad : end_w]

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Add the gradients up, and apply the mask."""
        gradient = self._gradient(tensors)
        return torch.where(tensors["inactive"] % 2 != 0, torch.zeros_like(gradient), gradient)

    def reference_outputs(
        self, tensors: Tensors, y: torch.Tensor, scalars: tuple[float, ...]
    ) -> dict[str, torch.Tensor]:
        """Return the sums."""
        summed = [self._gradient(tensors), y]
        if self.product:
            summed += [y * tensors["factor"], tensors["factor"]]
        return {"sums": torch.stack([one.sum((1, 2)) for one in summed], dim=1)}
