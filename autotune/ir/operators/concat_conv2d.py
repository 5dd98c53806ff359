"""A 1x1 convolution of a concatenation with steps of its own, as in pre-activation and dense networks."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.ir.epilogue import AnchorFunction, Argument, Epilogue
from autotune.ir.operators.concatenation import PIECE_SIZES, Concatenation
from autotune.ir.problem.base import Operand, Tensors, as_nchw, as_nhwc
from autotune.ir.problem.registry import register

_CONV = Epilogue(("conv",))


@register
class ConcatConv2d(Concatenation):
    """A 1x1 convolution of the concatenation of pieces, which may be a single one.

    The epilogue's steps before `conv` apply to the concatenation (n, h, w, c), those after it to the result
    (n, h, w, k) of the convolution with weight (k, c, 1, 1): "scale,bias,relu,conv,bias,relu" in DenseNet,
    "mul_image,conv,bias,add" behind the gates of squeeze-and-excitation. Neither the concatenation nor its activation
    is a tensor in memory.
    """

    operator: ClassVar[str] = "concat_conv2d"
    sizes: ClassVar[str] = f"n h w c k count {PIECE_SIZES}"
    anchors: ClassVar[tuple[str, ...]] = ("conv",)
    broadcasts: ClassVar[bool] = True
    k: int
    epilogue: Epilogue = _CONV

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h, w, k)."""
        return (self.n, self.h, self.w, self.k)

    @property
    def roundings(self) -> int:
        """Return 2: the convolution's operand is rounded too."""
        return 2

    @property
    def flops(self) -> int:
        """Return 2 n h w c k."""
        return 2 * self.n * self.h * self.w * self.c * self.k

    @property
    def short_name(self) -> str:
        """Return the pieces, the output channels and the image."""
        return f"1x1 of {'+'.join(map(str, self.pieces))}>{self.k} @{self.h}x{self.w}"

    def struct_values(self) -> tuple[int, ...]:
        """Return the sizes."""
        return (self.n, self.h, self.w, self.c, self.k, len(self.pieces), *self.piece_values)

    def _inputs(self) -> tuple[Operand, ...]:
        return (*super()._inputs(), Operand("weight", "weight", (self.k, self.c, 1, 1), self.dtype))

    def _shape_at(self, argument: Argument) -> tuple[int, ...]:
        early = any(argument in step.arguments for step in self.epilogue.parts[0])
        return (self.n, self.h, self.w, self.c) if early else self.output_shape

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Concatenate the pieces."""
        return self.concatenated(tensors)

    def reference_anchors(self, tensors: Tensors) -> tuple[AnchorFunction, ...]:
        """Return the function of `conv`."""
        return (lambda value: as_nhwc(F.conv2d(as_nchw(value), tensors["weight"])),)
