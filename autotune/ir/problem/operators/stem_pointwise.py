"""First layers of a network, with the 1x1 convolution that reads their result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.epilogue import AnchorFunction, Argument, Epilogue
from autotune.ir.problem.base import Operand, Tensors
from autotune.ir.problem.images import as_nchw, as_nhwc
from autotune.ir.problem.operators.first_layers import FirstLayers
from autotune.ir.problem.registry import register

_CONV = Epilogue(("conv",))


@register
@dataclass(frozen=True, kw_only=True)
class StemPointwise(FirstLayers):
    """A stem and the 1x1 convolution that reads its result, such as the first one of a ResNet's first block.

    x (n, c, h, w) is convolved with weight1 (k, c, r, s) and pooled, as in `stem`. In the epilogue, the step `conv`
    stands where the value so far is convolved with weight2 (outputs, k, 1, 1): "bias,relu,store,conv,bias,relu". The
    tensors of the steps before it have k channels. With a `store` before it the stem's result (n, p, q, k) is written
    too, for other readers.
    """

    operator: ClassVar[str] = "stem_pointwise"
    struct: ClassVar[str] = "at_stem_pointwise"
    sizes: ClassVar[str] = f"{FirstLayers.sizes} outputs"
    anchors: ClassVar[tuple[str, ...]] = ("conv",)
    outputs: int
    epilogue: Epilogue = _CONV

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, p, q, outputs)."""
        return (self.n, self.p, self.q, self.outputs)

    @property
    def roundings(self) -> int:
        """Return 2: the stem's result is rounded too."""
        return 2

    @property
    def flops(self) -> int:
        """Return those of both convolutions."""
        return super().flops + 2 * self.n * self.p * self.q * self.k * self.outputs

    @property
    def short_name(self) -> str:
        """Return that of the stem, and the channels of the second convolution."""
        return f"stem {self.r}x{self.s}/{self.stride[0]} {self.c}>{self.k}>{self.outputs} @{self.h}x{self.w}"

    def _inputs(self) -> tuple[Operand, ...]:
        return (
            self._x_nchw,
            Operand("weight1", "weight", (self.k, self.c, self.r, self.s), self.dtype),
            Operand("weight2", "weight", (self.outputs, self.k, 1, 1), self.dtype),
        )

    def _shape_at(self, argument: Argument) -> tuple[int, ...]:
        early = any(argument in step.arguments for step in self.epilogue.parts[0])
        return (self.n, self.p, self.q, self.k) if early else self.output_shape

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the first convolution, then pool."""
        return as_nhwc(self.max_pool(F.conv2d(tensors["x"], tensors["weight1"], None, self.stride, self.pad)))

    def reference_anchors(self, tensors: Tensors) -> tuple[AnchorFunction, ...]:
        """Return the function of `conv`."""

        def convolve(value: torch.Tensor) -> torch.Tensor:
            return as_nhwc(F.conv2d(as_nchw(value), tensors["weight2"]))

        return (convolve,)
