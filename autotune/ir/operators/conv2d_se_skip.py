"""Convolution with squeeze-and-excitation and the projection of the skip connection."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from autotune.core import ProblemError
from autotune.ir.epilogue import AnchorFunction, Epilogue
from autotune.ir.operators.folded_se import FoldedSe
from autotune.ir.problem.base import Operand, Tensors, as_nchw, as_nhwc
from autotune.ir.problem.registry import register

_GATE_AND_PROJECT = Epilogue(("gate", "project"))


@register
class Conv2dSeSkip(FoldedSe):
    """As conv2d_folded_se, with the projection of the block's skip connection.

    In the epilogue, `project` stands where the identity is added: skip (n, p, q, skip_c) after a 1x1 convolution in
    skip_groups with `projection` (k, skip_c/skip_groups, 1, 1): "bias,gate,project,relu".
    """

    operator: ClassVar[str] = "conv2d_se_skip"
    sizes: ClassVar[str] = f"{FoldedSe.sizes} skip_c skip_groups"
    struct: ClassVar[str] = "at_conv2d_se_skip"
    anchors: ClassVar[tuple[str, ...]] = ("gate", "project")
    skip_c: int
    skip_groups: int = 1
    epilogue: Epilogue = _GATE_AND_PROJECT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.skip_c % self.skip_groups or self.k % self.skip_groups:
            raise ProblemError(f"'{self}': skip_groups must divide both skip_c and k")

    @property
    def flops(self) -> int:
        """Return those of conv2d_folded_se and of the projection."""
        return super().flops + 2 * self.n * self.p * self.q * self.k * self.skip_c // self.skip_groups

    def _inputs(self) -> tuple[Operand, ...]:
        skip = Operand("skip", "input", (self.n, self.p, self.q, self.skip_c), self.dtype)
        shape = (self.k, self.skip_c // self.skip_groups, 1, 1)
        return (*super()._inputs(), skip, Operand("projection", "weight", shape, self.dtype))

    def reference_anchors(self, tensors: Tensors) -> tuple[AnchorFunction, ...]:
        """Return the functions of `gate` and `project`."""

        def project(value: torch.Tensor) -> torch.Tensor:
            return value + as_nhwc(F.conv2d(as_nchw(tensors["skip"]), tensors["projection"], groups=self.skip_groups))

        return (*super().reference_anchors(tensors), project)
