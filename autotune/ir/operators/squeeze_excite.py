"""Squeeze-and-excitation with any of several activations, and its gates alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F

from autotune.core import require_one_of
from autotune.ir.operators.se_gate import Activation, SelfGated, apply_squeezed
from autotune.ir.problem.base import Tensors, problem_class
from autotune.ir.problem.fields import FieldType
from autotune.ir.problem.registry import register

HIDDEN_ACTIVATIONS: dict[str, Activation] = {"relu": torch.relu, "silu": F.silu, "hardswish": F.hardswish}
"""Activation of the hidden values by its name, which is also that of the epilogue step."""
GATE_ACTIVATIONS: dict[str, Activation] = {"sigmoid": torch.sigmoid, "hardsigmoid": F.hardsigmoid}
"""Activation of the gates by its name, which is also that of the epilogue step."""


def _one_of(known: Iterable[str]) -> FieldType:
    def check(name: str, value: Any) -> None:
        require_one_of(name.rpartition(" ")[2], value, list(known))

    return FieldType("WORD", f"one of {', '.join(known)}", str, check)


@problem_class
class Excitation(SelfGated):
    """The base of operators with the gates of squeeze-and-excitation and the activations of a network.

    gates = gate(w2 act(w1 mean(x) + b1) + b2), the mean over h and w, w1 (hidden, c), w2 (c, hidden); act: relu, silu
    or hardswish; gate: sigmoid or hardsigmoid.
    """

    act: Annotated[str, _one_of(HIDDEN_ACTIVATIONS)]
    gate: Annotated[str, _one_of(GATE_ACTIVATIONS)]

    @property
    def short_name(self) -> str:
        """Return the channels, the hidden values, the activations and the image."""
        return f"{self._verb} {self.c}>{self.hidden} {self.act}>{self.c} {self.gate} @{self.h}x{self.w}"

    _verb: ClassVar[str]

    def _gates(self, tensors: Tensors) -> torch.Tensor:
        """Return the gates (n, 1, 1, c)."""
        ones = torch.ones_like(tensors["x"][:, :1, :1])
        squeezed = F.linear(tensors["x"].mean((1, 2)), tensors["w1"])
        return apply_squeezed(ones, squeezed, tensors, HIDDEN_ACTIVATIONS[self.act], GATE_ACTIVATIONS[self.gate])


@register
class SqueezeExcite(Excitation):
    """Squeeze-and-excitation with the activations of a network, such as those of EfficientNet and MobileNetV3.

    y = epilogue(x * gates). se_tail is the same with relu and sigmoid.
    """

    operator: ClassVar[str] = "squeeze_excite"
    _verb: ClassVar[str] = "se"

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Scale x by its gates."""
        return tensors["x"] * self._gates(tensors)


@register
class SeGates(Excitation):
    """The gates of squeeze-and-excitation: y (n, 1, 1, c) = epilogue(gates). Another layer scales x by them.

    A 1x1 convolution behind a squeeze-and-excitation does that to its input, as `concat_conv2d` with `mul_image`.
    """

    operator: ClassVar[str] = "se_gates"
    _verb: ClassVar[str] = "gates"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (n, 1, 1, c)."""
        return (self.n, 1, 1, self.c)

    def reference(self, tensors: Tensors, scalars: tuple[float, ...]) -> torch.Tensor:
        """Compute the gates."""
        return self._gates(tensors)
