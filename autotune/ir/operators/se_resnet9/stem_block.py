"""The base of a network's first layer with the residual block after it."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.epilogue import AnchorFunction, Epilogue
from autotune.ir.operators.patch_conv2d import PatchConv2d
from autotune.ir.operators.se_gate import apply_gate
from autotune.ir.operators.se_resnet9.conv3x3 import conv3x3
from autotune.ir.operators.se_resnet9.se_block import SeBlock
from autotune.ir.problem.base import Images, Operand, Tensors, problem_class

_STEM_AND_BLOCK = Epilogue(("keep", "conv", "conv", "gate", "add_kept"))


@problem_class
class StemBlock(Images):
    """The first layer, a convolution of patches, and the residual block after it."""

    sizes: ClassVar[str] = "n h w c k block hidden"
    struct: ClassVar[str] = "at_stem_se_block"
    anchors: ClassVar[tuple[str, ...]] = ("keep", "conv", "conv", "gate", "add_kept")
    k: int
    block: int
    hidden: int
    epilogue: Epilogue = _STEM_AND_BLOCK

    @property
    def stem(self) -> PatchConv2d:
        """Return the first layer, without an epilogue."""
        return PatchConv2d(n=self.n, h=self.h, w=self.w, c=self.c, k=self.k, block=self.block, dtype=self.dtype)

    @property
    def behind(self) -> SeBlock:
        """Return the residual block, without the steps around its convolutions."""
        n, h, w, c = self.output_shape
        return SeBlock(n=n, h=h, w=w, c=c, hidden=self.hidden, dtype=self.dtype)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, h/block, w/block, k)."""
        return self.stem.output_shape

    @property
    def flops(self) -> int:
        """Return those of both."""
        return self.stem.flops + self.behind.flops

    @property
    def _size_name(self) -> str:
        return f"{self.c}>{self.k} @{self.h}x{self.w}"

    def _inputs(self) -> tuple[Operand, ...]:
        return (*self.stem.operands()[:2], *self.behind.operands()[1:-1])

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the first layer."""
        return self.stem.reference(tensors, scalars)

    def reference_anchors(self, tensors: Tensors) -> tuple[AnchorFunction, ...]:
        """Return the functions of both `conv` and of `gate`."""
        return (
            lambda value: conv3x3(value, tensors["weight1"]),
            lambda value: conv3x3(value, tensors["weight2"]),
            lambda value: apply_gate(value, tensors),
        )
