"""A captured network with its convolutions and linear layers in signed bytes, where that may gain; the rest as it was.

A layer's epilogue works on values in a unit: real values are unit * value. It begins with whole sums, whose unit is
that of the input times the weight's, a scale for each output channel, and must end in that of its output; a tensor
that is added must be in the unit reached by then. So the chain is read from its end: steps such as relu keep any unit,
constants are divided by it, and where units differ a `mul_scalar` stands between them. Which steps come of it depends
on the wiring alone, so a network is tuned without a calibration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from torch import nn

from autotune.core import CaptureError
from autotune.ir import Cast, ConstantExpr, ConstantSource, Conv2d, Epilogue, Gemm, Layer, MaxPool2d, Network
from fused_resnet.capture import capture
from fused_resnet.capture.layer_builder import AppliedStep, LayerBuilder, Value
from fused_resnet.capture.pointwise import number
from fused_resnet.quantization.int8_rules import DIVIDED, KEEP_UNIT, Wiring, choose_layers
from fused_resnet.quantization.scales import Scales, activation

BYTES = "s8"


@dataclass(frozen=True)
class Unit:
    """What 1 stands for. name: of the activation that has this unit; empty for plain values."""

    name: str
    scale: float


_PLAIN = Unit("", 1.0)


def capture_int8(model: nn.Module, shape: tuple[int, ...], dtype: str, scales: Scales) -> Network:
    """Capture a module as `capture` does, with the layers that gain by it in signed bytes.

    Args:
        model: The module to capture.
        shape: Shape of the input in torch's order, such as (N, C, H, W).
        dtype: The project's name of the dtype that the module's tensors have.
        scales: Scale of each activation by its name, as `calibrate` returns them.

    Raises:
        CaptureError: The module cannot be captured, or the scale of an activation is missing.
    """
    return capture(model, shape, dtype, rewrite=partial(in_bytes, scales=scales), precision=BYTES)


def in_bytes(layers: Sequence[Layer], scales: Scales) -> tuple[tuple[Layer, ...], dict[str, str]]:
    """The layers with casts between them, and why convolutions and linear layers that stay as they were do.

    scales: of activations by name (quantize.calibrate). Raises CaptureError where one is missing.
    """
    wiring = Wiring(layers)
    chosen, kept = choose_layers(wiring)
    return tuple(_Rewriting(wiring, chosen, scales).layers()), kept


class _Rewriting:
    """The layers so far; casts are made where they are first needed."""

    def __init__(self, wiring: Wiring, chosen: set[str], scales: Scales) -> None:
        self._wiring, self._chosen, self._scales = wiring, chosen, scales
        self._done: list[Layer] = []
        self._cast: dict[tuple[str, str], str] = {}

    def layers(self) -> list[Layer]:
        """All of them, in an order in which they can run."""
        for layer in self._wiring.layers:
            self._done.append(self._in_bytes(layer) if layer.name in self._chosen else self._as_it_was(layer))
        return self._done

    def _as_it_was(self, layer: Layer) -> Layer:
        dtypes = {operand.name: operand.dtype for operand in layer.problem.operands()}
        changed = {
            name: self._in(layer.buffers[name], dtypes[name])
            for name in self._wiring.inputs[layer.name]
            if self._is_bytes(layer.buffers[name])
        }
        return dataclasses.replace(layer, buffers={**layer.buffers, **changed}) if changed else layer

    def _in_bytes(self, layer: Layer) -> Layer:
        problem = dataclasses.replace(layer.problem, dtype=BYTES, epilogue=Epilogue())
        x, weights = layer.buffers["x"], dict[str, ConstantSource]()
        if isinstance(problem, Conv2d | Gemm):
            weights["weight"] = ConstantExpr("bytes", (layer.weights["weight"],))
        builder = LayerBuilder(layer.name, problem, {"x": self._in(x, BYTES), "y": layer.buffers["y"]}, weights)
        taken = builder.follow(self._chain(layer), layer.buffers["y"])
        assert taken, f"{layer.name} was chosen, and its chain is too long"
        return Layer(layer.name, builder.problem, builder.buffers, builder.weights, tuple(builder.scalars))

    def _chain(self, layer: Layer) -> list[AppliedStep]:
        """The epilogue in units, made from its end."""
        unit, backwards = self._unit(layer.buffers["y"]), list[AppliedStep]()
        for name, operands in reversed(_steps(layer)):
            needed = unit
            if name in ("add", "store"):
                needed = self._unit(operands[0])  # type: ignore[arg-type]
            elif name not in KEEP_UNIT | DIVIDED:
                needed = _PLAIN
            backwards += _change(needed, unit)
            unit = needed
            if name in ("add", "store"):
                buffer = str(operands[0])
                backwards.append(AppliedStep(name, (Value(self._in(buffer, BYTES) if name == "add" else buffer, ()),)))
            elif name in DIVIDED:
                backwards.append(AppliedStep(name, tuple(_times(source, 1 / unit.scale) for source in operands)))
            else:
                backwards.append(AppliedStep(name, tuple(operands)))
        given = self._unit(layer.buffers["x"])
        if weight := layer.weights.get("weight"):
            factor = given.scale / unit.scale
            backwards.append(AppliedStep("scale", (ConstantExpr("byte_scales", (weight,), (factor,)),)))
        else:
            backwards += _change(given, unit)
        return backwards[::-1]

    def _unit(self, buffer: str) -> Unit:
        """What a byte of an activation stands for."""
        layer, operand = self._wiring.maker[buffer]
        if isinstance(layer.problem, MaxPool2d) and layer.name in self._chosen and not layer.problem.epilogue.names:
            return self._unit(layer.buffers["x"])  # it passes bytes on as they are
        name = activation(layer, operand.name)
        try:
            return Unit(name, self._scales[name])
        except KeyError:
            raise CaptureError(f"no scale is known for {name}: calibrate with inputs of this shape, too") from None

    def _is_bytes(self, buffer: str) -> bool:
        return buffer in self._wiring.maker and self._wiring.maker[buffer][0].name in self._chosen

    def _in(self, buffer: str, dtype: str) -> str:
        """The buffer with an activation in bytes, or in another dtype: its own, or that of a cast."""
        if self._is_bytes(buffer) == (dtype == BYTES):
            return buffer
        if (buffer, dtype) not in self._cast:
            unit = self._unit(buffer)
            layer, operand = self._wiring.maker[buffer]
            n, *image, c = operand.shape
            h, w = image if len(image) == 2 else (1, prod(image))
            given = operand.dtype if dtype == BYTES else BYTES
            problem = Cast(n=n, h=h, w=w, c=c, dtype=given, result=dtype, epilogue=Epilogue(("mul_scalar",)))
            by = 1 / unit.scale if dtype == BYTES else unit.scale
            made = self._cast[buffer, dtype] = f"{buffer}.{dtype}"
            name = f"{activation(layer, operand.name)}.{dtype}"
            self._done.append(Layer(name, problem, {"x": buffer, "y": made}, scalars=(number(by),)))
        return self._cast[buffer, dtype]


def _steps(layer: Layer) -> list[tuple[str, list[ConstantSource]]]:
    """Each step with what it takes: constants, or the name of a buffer."""
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


def _change(given: Unit, wanted: Unit) -> list[AppliedStep]:
    """The step that brings values from one unit to another; none within one."""
    same = given.name == wanted.name
    return [] if same else [AppliedStep("mul_scalar", (number(given.scale / wanted.scale),))]


def _times(source: ConstantSource, factor: float) -> ConstantSource:
    return ConstantExpr("product", (source, number(factor)))
