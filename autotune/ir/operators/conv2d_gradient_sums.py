"""A convolution that computes the input gradient of a layer behind a norm, with the sums of the norm's gradient."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.operators.batch_norm_gradient import JOINED_RELU, NO_RELU, BatchNormGradientSums
from autotune.ir.operators.batch_norm_statistics import BatchNormStatistics
from autotune.ir.operators.conv2d import Convolution
from autotune.ir.operators.conv2d_with_norm import Conv2dWithNorm
from autotune.ir.problem.base import Operand, Tensors
from autotune.ir.problem.fields import NonNegative
from autotune.ir.problem.registry import register


@register
class Conv2dGradientSums(Conv2dWithNorm):
    """A convolution, and BatchNormGradientSums of its result: the input gradient of a layer behind a norm.

    The convolution of x with weight is the dy of BatchNormGradientSums, whose fields relu and gradients this problem
    has, too. y (n, p, q, k) is its dz: where the ReLU was not active it is 0. norm_x (n, p, q, k) is the input of the
    normalization, statistics (5, k) are those of BatchNormStatistics, and sums (4, k) in float32 is the y of
    BatchNormGradientSums. With gradients=2 there is dy2, with relu=2 z, both (n, p, q, k).
    """

    operator: ClassVar[str] = "conv2d_gradient_sums"
    sizes: ClassVar[str] = f"{Convolution.sizes} relu gradients"
    struct: ClassVar[str] = "at_conv2d_gradient_sums"
    relu: NonNegative = NO_RELU
    gradients: int = 1

    @property
    def norm(self) -> BatchNormGradientSums:
        """Return the sums alone; raises ProblemError for other values of relu and gradients, as a new problem does."""
        n, h, w, c = self.output_shape
        return BatchNormGradientSums(
            n=n, h=h, w=w, c=c, relu=self.relu, gradients=self.gradients, dtype=self.dtype
        )  # fmt: skip

    @property
    def short_name(self) -> str:
        """Return that of the convolution."""
        return f"{self.convolution.short_name} + sums"

    def operands(self) -> tuple[Operand, ...]:
        """Return x, weight and y, then norm_x, statistics and sums, and dy2 and z if the problem has them."""
        shape, dtype = self.output_shape, self.dtype
        statistics = BatchNormStatistics(n=shape[0], h=shape[1], w=shape[2], c=shape[3], dtype=dtype).output_shape
        return (
            *super().operands(),
            Operand("norm_x", "input", shape, dtype),
            Operand("statistics", "input", statistics, "f32"),
            Operand("sums", "output", self.norm.output_shape, "f32"),
            *([Operand("dy2", "input", shape, dtype)] if self.gradients == 2 else []),
            *([Operand("z", "input", shape, dtype)] if self.relu == JOINED_RELU else []),
        )

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Convolve, add dy2 and apply the mask."""
        dy = self.convolve(tensors["x"], tensors["weight"])
        return self.norm.masked({**tensors, "dy": dy, "x": tensors["norm_x"]})

    def reference_outputs(
        self, tensors: Tensors, y: torch.Tensor, scalars: tuple[float, ...]
    ) -> dict[str, torch.Tensor]:
        """Return the sums."""
        n, h, w, c = self.output_shape
        alone = BatchNormGradientSums(n=n, h=h, w=w, c=c, dtype=self.dtype)
        return {"sums": alone.reference({"dy": y, "x": tensors["norm_x"], "statistics": tensors["statistics"]}, ())}
