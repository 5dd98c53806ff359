"""The gradient of a batch normalization in training, in two passes: sums over all pixels, and the gradient itself."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.core import ProblemError
from autotune.ir.operators.batch_norm_statistics import STATISTICS
from autotune.ir.problem.base import Images, Operand, Tensors, problem_class
from autotune.ir.problem.fields import NonNegative
from autotune.ir.problem.registry import register

GRADIENT_SUMS = 4
"""Rows of the sums: the bias gradient, the weight gradient, slope and offset."""

NO_RELU, OWN_RELU, JOINED_RELU = range(3)
"""Values of the field `relu`: what follows the normalization. JOINED_RELU is a ReLU after another tensor was added."""


@problem_class
class _BatchNormPass(Images):
    """A pass over all pixels whose statistics are those of BatchNormStatistics."""

    relu: NonNegative = NO_RELU

    def _image(self, name: str, role: str = "input") -> Operand:
        return Operand(name, role, self._x.shape, self.dtype)

    def _is_active(self, tensors: Tensors) -> torch.Tensor:
        """Return where the ReLU of the normalized value is active.

        As in the kernels, product and sum are rounded to float32 one after the other, so that both agree on each value
        that is near 0.
        """
        *_, scale, shift = tensors["statistics"].float()
        active: torch.Tensor = tensors["x"].float() * scale + shift > 0
        return active


@register
class BatchNormGradientSums(_BatchNormPass):
    """Sums of the gradient of a batch normalization in training over all pixels: y (4, c) in float32.

    dz is the gradient with respect to the normalized value: dy (n, h, w, c), where the ReLU behind it was active, and 0
    elsewhere. With relu=1 that is where scale x + shift > 0; with relu=2 another tensor was added before the ReLU, and
    it is where the ReLU's result z is positive. With gradients=2, dy + dy2 takes the place of dy. dz (n, h, w, c) is
    stored with relu=2 or gradients=2.

    With x (n, h, w, c) and the rows of statistics (5, c), which BatchNormStatistics computes, the rows of y are

    - the bias gradient, sum(dz)
    - the weight gradient, factor sum(dz (x - mean))
    - slope and offset of BatchNormGradient: with m = n h w, slope = -scale factor row(1) / m and
      offset = -scale row(0) / m - slope mean.
    """

    operator: ClassVar[str] = "batch_norm_gradient_sums"
    has_epilogue: ClassVar[bool] = False
    sizes: ClassVar[str] = "n h w c relu gradients"
    gradients: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relu > JOINED_RELU or self.gradients > 2:
            raise ProblemError(f"'{self}': relu is at most 2, and gradients is 1 or 2")

    @property
    def stores_gradient(self) -> bool:
        """Return whether dz is stored."""
        return self.relu == JOINED_RELU or self.gradients == 2

    @property
    def output_dtype(self) -> str:
        """Return f32."""
        return "f32"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (4, c)."""
        return (GRADIENT_SUMS, self.c)

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._image("dy"),
            *([self._image("dy2")] if self.gradients == 2 else []),
            self._x,
            Operand("statistics", "input", (STATISTICS, self.c), "f32"),
            *([self._image("z")] if self.relu == JOINED_RELU else []),
        )

    def operands(self) -> tuple[Operand, ...]:
        """Return all tensors in the order of a kernel's pointers: the inputs, `y`, and `dz` if it is stored."""
        return (*super().operands(), *([self._image("dz", "output")] if self.stores_gradient else []))

    def masked(self, tensors: Tensors) -> torch.Tensor:
        """Return dz: the gradients, added up, where the ReLU was active."""
        dy = tensors["dy"] + tensors["dy2"] if self.gradients == 2 else tensors["dy"]
        if self.relu == NO_RELU:
            return dy
        return dy.where(tensors["z"] > 0 if self.relu == JOINED_RELU else self._is_active(tensors), 0.0)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Add up, and compute what follows from the sums."""
        mean, _, factor, scale, _ = tensors["statistics"]
        dz = self.masked(tensors)
        by_bias = dz.sum((0, 1, 2))
        by_weight = (dz * (tensors["x"] - mean)).sum((0, 1, 2)) * factor
        pixels = self.n * self.h * self.w
        slope = -scale * factor * by_weight / pixels
        return torch.stack([by_bias, by_weight, slope, -scale * by_bias / pixels - slope * mean])

    def reference_outputs(
        self, tensors: Tensors, y: torch.Tensor, scalars: tuple[float, ...]
    ) -> dict[str, torch.Tensor]:
        """Return dz if it is stored."""
        return {"dz": self.masked(tensors)} if self.stores_gradient else {}


@register
class BatchNormGradient(_BatchNormPass):
    """The input gradient of a batch normalization in training: y = scale dz + slope x + offset (n, h, w, c).

    dz and x have the shape of y. With relu=1, dz counts only where scale x + shift > 0. Scale and shift are rows of
    statistics (5, c), and slope and offset rows of sums (4, c), which BatchNormGradientSums computes.
    """

    operator: ClassVar[str] = "batch_norm_gradient"
    has_epilogue: ClassVar[bool] = False
    sizes: ClassVar[str] = "n h w c relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relu > OWN_RELU:
            raise ProblemError(f"'{self}': relu is 0 or 1")

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._image("dz"),
            self._x,
            Operand("statistics", "input", (STATISTICS, self.c), "f32"),
            Operand("sums", "input", (GRADIENT_SUMS, self.c), "f32"),
        )

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the gradient."""
        *_, scale, _ = tensors["statistics"]
        *_, slope, offset = tensors["sums"]
        dz = tensors["dz"]
        if self.relu == OWN_RELU:
            dz = dz.where(self._is_active(tensors), 0.0)
        gradient: torch.Tensor = dz * scale + tensors["x"] * slope + offset
        return gradient
