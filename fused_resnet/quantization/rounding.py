"""Layers in an 8-bit format, simulated in float32: the values that they read and write are rounded to their scales."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from autotune.ir import ByteFormat, Layer
from autotune.ir.operators import MaxPool2d
from autotune.ir.reference_run import Operands, inputs_of
from fused_resnet.quantization.byte_rules import Wiring
from fused_resnet.quantization.scales import Corrections, Scales, activation


@dataclass(frozen=True)
class Rounding:
    """The hooks of `run_layers` that simulate layers in bytes.

    Attributes:
        form: The format.
        wiring: The layers.
        scales: Scale of each activation.
        in_bytes: Names of the layers that are simulated.
        corrections: What these layers add to their biases.
    """

    form: ByteFormat
    wiring: Wiring
    scales: Scales
    in_bytes: Collection[str]
    corrections: Corrections = field(default_factory=dict)

    def read(self, layer: Layer, operands: Operands) -> Operands:
        """Return the inputs and weights of a layer, rounded and corrected if it is in bytes."""
        if layer.name not in self.in_bytes:
            return operands
        rounded = {name: self._in_scale(operands[name], layer.buffers[name]) for name in inputs_of(layer)}
        if "weight" in operands:
            weight, scale = self.form.quantize_weight(operands["weight"])
            rounded["weight"] = weight.float() * scale.view(-1, *[1] * (weight.dim() - 1))
        if layer.name in self.corrections:
            bias = bias_operand(layer)
            rounded[bias] = operands[bias] + operands[bias].new_tensor(self.corrections[layer.name])
        return {**operands, **rounded}

    def written(self, layer: Layer, name: str, value: torch.Tensor) -> torch.Tensor:
        """Return an output of a layer, rounded if it is in bytes."""
        return self._in_scale(value, layer.buffers[name]) if layer.name in self.in_bytes else value

    def _in_scale(self, value: torch.Tensor, buffer: str) -> torch.Tensor:
        scale = self.scales[scaled_as(self.wiring, self.in_bytes, buffer)]
        return self.form.quantized(value, scale) * scale


def bias_operand(layer: Layer) -> str:
    """Return the operand name of a layer's first bias, to which its correction is added."""
    return next(step.arguments[0].name for step in layer.problem.epilogue.steps if step.name == "bias")


def scaled_as(wiring: Wiring, in_bytes: Collection[str], buffer: str) -> str:
    """Return the name of the activation whose scale a buffer has in bytes.

    It is the buffer's own activation, or the input of a max pool in bytes, which passes bytes on unchanged.
    """
    layer, operand = wiring.maker[buffer]
    if isinstance(layer.problem, MaxPool2d) and layer.name in in_bytes and not layer.problem.epilogue.names:
        return scaled_as(wiring, in_bytes, layer.buffers["x"])
    return activation(layer, operand.name)
