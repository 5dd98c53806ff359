"""Rewrites a captured network so that its convolutions and linear layers run in an 8-bit format where that may gain.

The epilogue of a layer in bytes works on scaled values: real value = scale * value. It starts with the sums,
whose scale is that of the input times that of the weight (one for each output channel), and ends with the output in its
own scale. The steps between:

- relu and the like are the same in any scale (KEEP_SCALE);
- bias and the like are the same if their constants are divided by the scale (DIVIDED); the first bias includes the
  layer's correction, if the calibration has one;
- add and store use another activation, so they work in that activation's scale;
- all other steps, such as sigmoid, work on real values, whose scale is 1.

A `mul_scalar` step converts where the scales of two consecutive steps differ. The steps depend on the wiring alone, so
a network can be tuned without a calibration.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from torch import nn

from autotune.core import CaptureError
from autotune.ir import ByteFormat, ConstantExpr, ConstantSource, Epilogue, Layer, Network
from autotune.ir.operators import Cast, Conv2d, Gemm
from fused_resnet.call import Signature
from fused_resnet.capture import CapturedModule, capture, capture_module
from fused_resnet.capture.layer_builder import AppliedStep, LayerBuilder, Value
from fused_resnet.capture.pointwise import number
from fused_resnet.quantization.byte_rules import DIVIDED, KEEP_SCALE, Wiring, choose_layers
from fused_resnet.quantization.rounding import scaled_as
from fused_resnet.quantization.scales import CalibratedScales, Corrections, Scales, activation


@dataclass(frozen=True)
class Scale:
    """The real value of 1.

    Attributes:
        activation: Name of the activation that has this scale; empty for real values.
        value: The scale.
    """

    activation: str
    value: float


_REAL = Scale("", 1.0)


def capture_bytes(model: nn.Module, shape: tuple[int, ...], dtype: str, scales: Scales, form: ByteFormat) -> Network:
    """Capture a module as `capture` does, with the layers that gain by it in an 8-bit format.

    Args:
        model: The module to capture.
        shape: Shape of the input in torch's order, such as (N, C, H, W).
        dtype: The project's name of the dtype that the module's tensors have.
        scales: Scale of each activation by its name, as `calibrate` returns them.
        form: The format.

    Raises:
        CaptureError: The module cannot be captured, the scale of an activation is missing, or a layer without a bias
            has a correction.
    """
    return capture(model, shape, dtype, rewrite=partial(in_bytes, scales=scales, form=form), precision=form.dtype)


def capture_module_bytes(
    model: nn.Module, signature: Signature, dtype: str, scales: Scales, form: ByteFormat
) -> CapturedModule:
    """Capture a module as `capture_bytes` does, with the structure of its result."""
    return capture_module(
        model, signature, dtype, rewrite=partial(in_bytes, scales=scales, form=form), precision=form.dtype
    )


def in_bytes(layers: Sequence[Layer], scales: Scales, form: ByteFormat) -> tuple[tuple[Layer, ...], dict[str, str]]:
    """Rewrite the layers that gain by it to an 8-bit format, with casts where needed.

    Args:
        layers: The captured layers.
        scales: Scale of each activation by its name, as `calibrate` returns them.
        form: The format.

    Returns:
        The new layers, and for each convolution or linear layer that stays as it was, the reason.

    Raises:
        CaptureError: The scale of an activation is missing, or a layer without a bias has a correction.
    """
    wiring = Wiring(layers)
    sensitive = scales.sensitive if isinstance(scales, CalibratedScales) else None
    chosen, kept = choose_layers(wiring, form, sensitive)
    return tuple(_Rewriter(wiring, chosen, scales, form).layers()), kept


class _Rewriter:
    """Collects the rewritten layers in order; a cast is added where it is first needed."""

    def __init__(self, wiring: Wiring, chosen: set[str], scales: Scales, form: ByteFormat) -> None:
        self._wiring, self._chosen, self._scales, self._form = wiring, chosen, scales, form
        self._corrections = scales.corrections if isinstance(scales, CalibratedScales) else {}
        self._done: list[Layer] = []
        self._casts: dict[tuple[str, str], str] = {}  # (buffer, dtype) -> buffer with the cast

    def layers(self) -> list[Layer]:
        """Return all layers, each after those whose results it reads."""
        for layer in self._wiring.layers:
            self._done.append(self._in_bytes(layer) if layer.name in self._chosen else self._unchanged(layer))
        return self._done

    def _unchanged(self, layer: Layer) -> Layer:
        """Return a layer that stays in floating point; what it reads in bytes is cast back."""
        dtypes = {operand.name: operand.dtype for operand in layer.problem.operands()}
        changed = {
            name: self._buffer_in(layer.buffers[name], dtypes[name])
            for name in self._wiring.inputs[layer.name]
            if self._is_bytes(layer.buffers[name])
        }
        return dataclasses.replace(layer, buffers={**layer.buffers, **changed}) if changed else layer

    def _in_bytes(self, layer: Layer) -> Layer:
        problem = dataclasses.replace(layer.problem, dtype=self._form.dtype, epilogue=Epilogue())
        x, weights = self._buffer_in(layer.buffers["x"], self._form.dtype), dict[str, ConstantSource]()
        if isinstance(problem, Conv2d | Gemm):
            weights["weight"] = ConstantExpr(self._form.constants[0], (layer.weights["weight"],))
        builder = LayerBuilder(layer.name, problem, {"x": x, "y": layer.buffers["y"]}, weights)
        fits = builder.follow(self._epilogue(layer), layer.buffers["y"])
        assert fits, f"{layer.name}: choose_layers takes no layer whose epilogue is too long in bytes"
        return Layer(layer.name, builder.problem, builder.buffers, builder.weights, tuple(builder.scalars))

    def _epilogue(self, layer: Layer) -> list[AppliedStep]:
        """Return the steps of a layer on scaled values."""
        steps = _corrected(layer, self._corrections)
        # In reverse, because the order in which casts are made is part of the network's key in databases.
        added = {
            i: self._buffer_in(str(steps[i][1][0]), self._form.dtype)
            for i in reversed(range(len(steps)))
            if steps[i][0] == "add"
        }
        scales = self._scales_of_steps(steps, self._scale(layer.buffers["y"]))
        chain = self._from_sums(layer, scales[0])
        for i, (name, operands) in enumerate(steps):
            if name == "add":
                chain.append(AppliedStep(name, (Value(added[i], ()),)))
            elif name == "store":
                chain.append(AppliedStep(name, (Value(str(operands[0]), ()),)))
            elif name in DIVIDED:
                chain.append(AppliedStep(name, tuple(_times(source, 1 / scales[i].value) for source in operands)))
            else:
                chain.append(AppliedStep(name, tuple(operands)))
            chain += _convert(scales[i], scales[i + 1])
        return chain

    def _scales_of_steps(self, steps: Sequence[tuple[str, list[ConstantSource]]], output: Scale) -> list[Scale]:
        """Return the scale of the values on which each step works, and at last that of the output.

        A step that works in any scale takes that of the step after it, so that no conversion is needed between them.
        """
        scales = [output]
        for name, operands in reversed(steps):
            if name in ("add", "store"):
                scales.append(self._scale(str(operands[0])))
            elif name in KEEP_SCALE | DIVIDED:
                scales.append(scales[-1])
            else:
                scales.append(_REAL)
        return scales[::-1]

    def _from_sums(self, layer: Layer, wanted: Scale) -> list[AppliedStep]:
        """Return the steps that bring the sums of a product, or the input of a layer without weights, to a scale."""
        given = self._scale(layer.buffers["x"])
        if weight := layer.weights.get("weight"):
            factors = ConstantExpr(self._form.constants[1], (weight,), (given.value / wanted.value,))
            return [AppliedStep("scale", (factors,))]
        return _convert(given, wanted)

    def _scale(self, buffer: str) -> Scale:
        """Return the scale of an activation in bytes."""
        name = scaled_as(self._wiring, self._chosen, buffer)
        try:
            scale = self._scales[name]
        except KeyError:
            raise CaptureError(
                f"calibration has no scale for {name}: calibrate with inputs of this shape, too"
            ) from None
        if isinstance(scale, str) or not 0 < scale < math.inf:
            raise CaptureError(
                f"calibration has the scale {scale!r} for {name}, and a scale is a positive number: calibrate again"
            )
        return Scale(name, scale)

    def _is_bytes(self, buffer: str) -> bool:
        return buffer in self._wiring.maker and self._wiring.maker[buffer][0].name in self._chosen

    def _buffer_in(self, buffer: str, dtype: str) -> str:
        """Return the buffer that holds an activation in a dtype: its own, or that of a cast."""
        if self._is_bytes(buffer) == (dtype == self._form.dtype):
            return buffer
        if (buffer, dtype) not in self._casts:
            scale = self._scale(buffer)
            layer, operand = self._wiring.maker[buffer]
            n, *image, c = operand.shape
            h, w = image if len(image) == 2 else (1, prod(image))
            given = operand.dtype if dtype == self._form.dtype else self._form.dtype
            problem = Cast(n=n, h=h, w=w, c=c, dtype=given, result=dtype, epilogue=Epilogue(("mul_scalar",)))
            factor = 1 / scale.value if dtype == self._form.dtype else scale.value
            cast = self._casts[buffer, dtype] = f"{buffer}.{dtype}"
            name = f"{activation(layer, operand.name)}.{dtype}"
            self._done.append(Layer(name, problem, {"x": buffer, "y": cast}, scalars=(number(factor),)))
        return self._casts[buffer, dtype]


def _steps(layer: Layer) -> list[tuple[str, list[ConstantSource]]]:
    """Return the name and operands of each epilogue step; an operand is a constant or the name of a buffer."""
    scalars = iter(layer.scalars)
    found = []
    for step in layer.problem.epilogue.steps:
        operands: list[ConstantSource] = []
        for argument in step.arguments:
            if argument.kind == "scalar":
                operands.append(next(scalars))
            else:
                operands.append((layer.weights if argument.kind == "vector" else layer.buffers)[argument.name])
        found.append((step.name, operands))
    return found


def _corrected(layer: Layer, corrections: Corrections) -> list[tuple[str, list[ConstantSource]]]:
    """Return the steps of a layer with its correction, if it has one, added to the first bias."""
    steps = _steps(layer)
    if layer.name not in corrections:
        return steps
    place = next((i for i, (name, _) in enumerate(steps) if name == "bias"), None)
    if place is None:
        raise CaptureError(f"calibration corrects the bias of {layer.name}, which has none: calibrate this model")
    correction = ConstantExpr("numbers", (), tuple(corrections[layer.name]))
    bias = ConstantExpr("sum", (*steps[place][1], correction))
    return [*steps[:place], ("bias", [bias]), *steps[place + 1 :]]


def _convert(given: Scale, wanted: Scale) -> list[AppliedStep]:
    """Return the step that converts values from one scale to another; none if both are of the same activation."""
    if given.activation == wanted.activation:
        return []
    return [AppliedStep("mul_scalar", (number(given.value / wanted.value),))]


def _times(source: ConstantSource, factor: float) -> ConstantSource:
    return ConstantExpr("product", (source, number(factor)))
