"""Squeeze-and-excitation at the end of a residual block."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.ir.operators.se_gate import SelfGated, apply_gate
from autotune.ir.problem.base import Tensors
from autotune.ir.problem.registry import register


@register
class SeTail(SelfGated):
    """Squeeze-and-excitation and the steps after it in a residual block.

    y = epilogue(x * sigmoid(w2 relu(w1 mean(x) + b1) + b2)), the mean over h and w, w1 (hidden, c), w2 (c, hidden).
    The epilogue is where the identity is added: "add,relu".
    """

    operator: ClassVar[str] = "se_tail"
    act: ClassVar[str] = "relu"
    gate: ClassVar[str] = "sigmoid"

    @property
    def short_name(self) -> str:
        """Return the channels, the hidden values and the image."""
        return f"se {self.c}>{self.hidden}>{self.c} @{self.h}x{self.w}"

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Scale x by its gate."""
        return apply_gate(tensors["x"], tensors)
