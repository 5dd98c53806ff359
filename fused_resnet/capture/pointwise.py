"""Elementwise operators -> epilogue steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from autotune.ir import ConstantExpr, ConstantSource
from fused_resnet.capture.layer_builder import AppliedStep, Value
from fused_resnet.capture.layout import same_layout
from fused_resnet.capture.nodes import arguments, name_of


@dataclass(frozen=True)
class Constant:
    """A constant operand, and its shape in torch's order."""

    source: ConstantSource
    shape: tuple[int, ...]

    def reshaped(self, shape: tuple[int, ...]) -> Constant:
        """Return the constant in another shape, which functions of a weight depend on."""
        source = self.source if shape == self.shape else ConstantExpr("reshape", (self.source,), shape)
        return Constant(source, shape)


Operand = Value | Constant | float
Find = Callable[[Any], Operand | None]
"""Returns an argument as an operand of a step; None for an argument that cannot be one."""

_PLAIN = ("relu", "relu6", "sigmoid", "hardsigmoid", "silu", "hardswish", "tanh", "mish", "exp", "abs")
CUSTOM = "autotune.step.default"
"""The operator of a custom step (activation.py)."""


def number(value: float) -> ConstantSource:
    """Return a constant of one number."""
    return ConstantExpr("numbers", (), (float(value),))


def operands(node: fx.Node) -> list[Any]:
    """Return the arguments to which the steps of a node can be applied; none for a node without steps."""
    name = name_of(node)
    if name in ("add", "sub", "mul"):
        given = arguments(node)
        return [given["self"], given["other"]]
    known = name in _PLAIN or name in _UNARY or name in _OF_CONSTANTS
    return [node.args[0]] if known else []


def steps(node: fx.Node, value: Value, position: int, find: Find) -> Sequence[AppliedStep] | None:
    """Return the steps that compute a node from one of its operands; None if there are none.

    Args:
        node: The node.
        value: The operand to which the steps are applied.
        position: Its position in `operands(node)`.
        find: Looks up the other arguments.
    """
    name = name_of(node)
    if name in _PLAIN:
        return [AppliedStep(name)]
    if name in _OF_CONSTANTS:
        return _OF_CONSTANTS[name](node, value, find)
    given = arguments(node)
    if name in ("add", "sub", "mul"):
        other = find(given["other" if position == 0 else "self"])
        if other is None or given.get("alpha", 1) != 1:
            return None
        return _binary(name, value, other, position)
    return _UNARY[name](given)


def _binary(name: str, value: Value, other: Operand, position: int) -> Sequence[AppliedStep] | None:
    """Return the steps for value + other, value * other, value - other or, at position 1, other - value."""
    negative = [AppliedStep("mul_scalar", (number(-1),))]
    if name == "sub" and position == 1:
        added = _binary("add", value, other, 0)
        return None if added is None else [*negative, *added]
    if isinstance(other, Value):
        step = _of_tensors(name, value, other)
        return [AppliedStep(step, (other,))] if step else None
    if isinstance(other, float):
        return [
            AppliedStep(f"{'mul' if name == 'mul' else 'add'}_scalar", (number(-other if name == "sub" else other),))
        ]
    source = ConstantExpr("product", (other.source, number(-1))) if name == "sub" else other.source
    if _is_single(other.shape):
        return [AppliedStep("mul_scalar" if name == "mul" else "add_scalar", (source,))]
    return [AppliedStep("scale" if name == "mul" else "bias", (source,))] if _is_channels(other.shape, value) else None


def _of_tensors(name: str, value: Value, other: Value) -> str | None:
    """Return the step of a value and another one, which may be broadcast to its shape; None if there is none."""
    if other.shape == value.shape:
        return name if same_layout(value.shape, value.layout, other.layout) else None
    if name == "sub" or len(value.shape) != 4 or len(other.shape) != 4 or not (value.is_usual and other.is_usual):
        return None
    n, c, h, w = value.shape
    return {(n, c, 1, 1): f"{name}_image", (n, 1, h, w): f"{name}_pixel"}.get(other.shape)


def _sloped(node: fx.Node, value: Value, find: Find) -> Sequence[AppliedStep] | None:
    slope = find(arguments(node)["weight"])
    if not isinstance(slope, Constant) or value.channel_axis != 1:
        return None
    return [AppliedStep("leaky_relu" if _is_single(slope.shape) else "prelu", (slope.source,))]


def _is_single(shape: tuple[int, ...]) -> bool:
    return all(extent == 1 for extent in shape)


def _is_channels(shape: tuple[int, ...], value: Value) -> bool:
    """Return whether a tensor that is broadcast to a value's shape has one element for each channel."""
    aligned = (*[1] * (len(value.shape) - len(shape)), *shape)
    return aligned == tuple(extent if i == value.channel_axis else 1 for i, extent in enumerate(value.shape))


def _normalisation(node: fx.Node, value: Value, find: Find) -> Sequence[AppliedStep] | None:
    given = arguments(node)
    mean, variance = find(given["running_mean"]), find(given["running_var"])
    training = given["training"]
    if training or not isinstance(mean, Constant) or not isinstance(variance, Constant) or value.channel_axis != 1:
        return None
    weight, bias = find(given["weight"]), find(given["bias"])
    affine = {"weight": weight, "bias": bias}
    if any(given[name] is not None and not isinstance(one, Constant) for name, one in affine.items()):
        return None  # computed from a parameter or from the input
    factors = (variance.source, weight.source) if isinstance(weight, Constant) else (variance.source,)
    scale = ConstantExpr("norm_scale", factors, (float(given["eps"]),))
    added = (bias.source,) if isinstance(bias, Constant) else ()
    shift = ConstantExpr("norm_shift", (mean.source, scale, *added))
    return [AppliedStep("scale", (scale,)), AppliedStep("bias", (shift,))]


def _custom(node: fx.Node, value: Value, find: Find) -> Sequence[AppliedStep] | None:
    _, name, parameters = node.args
    found = [find(parameter) for parameter in parameters]  # type: ignore[union-attr]
    sources = tuple(constant.source for constant in found if isinstance(constant, Constant))
    fits = len(sources) == len(found) and value.channel_axis == 1
    return [AppliedStep(str(name), sources)] if fits else None


def _clamped(low: Any, high: Any) -> Sequence[AppliedStep] | None:
    if not all(end is None or isinstance(end, int | float) for end in (low, high)):  # a tensor
        return None
    if (low, high) in ((0, None), (0, 6)):
        return [AppliedStep("relu" if high is None else "relu6")]
    infinite = float("inf")
    ends = (-infinite if low is None else low, infinite if high is None else high)
    return [AppliedStep("clamp", tuple(map(number, ends)))]


def _scaled(given: dict[str, Any]) -> Sequence[AppliedStep] | None:
    other = given["other"]
    fits = isinstance(other, int | float) and other != 0 and given.get("rounding_mode") is None
    return [AppliedStep("mul_scalar", (number(1 / other),))] if fits else None


def _reversed(given: dict[str, Any]) -> Sequence[AppliedStep] | None:
    if given["alpha"] != 1 or not isinstance(given["other"], int | float):
        return None
    return [AppliedStep("mul_scalar", (number(-1),)), AppliedStep("add_scalar", (number(given["other"]),))]


_OF_CONSTANTS: dict[str, Callable[[fx.Node, Value, Find], Sequence[AppliedStep] | None]] = {
    CUSTOM: _custom,
    "batch_norm": _normalisation,
    "prelu": _sloped,
}


def _exponential(alpha: float, rate: float = 1.0, factor: float = 1.0) -> Sequence[AppliedStep]:
    """Return the steps of factor * (x if x > 0, else alpha * (exp(rate * x) - 1))."""
    scaled = [] if factor == 1 else [AppliedStep("mul_scalar", (number(factor),))]
    return [AppliedStep("elu", (number(alpha), number(rate))), *scaled]


_SELU = (1.6732632423543772, 1.0, 1.0507009873554805)  # alpha, rate and factor: torch.nn.SELU

_UNARY: dict[str, Callable[[dict[str, Any]], Sequence[AppliedStep] | None]] = {
    "hardtanh": lambda given: _clamped(given["min_val"], given["max_val"]),
    "clamp": lambda given: _clamped(given["min"], given["max"]),
    "clamp_min": lambda given: _clamped(given["min"], None),
    "clamp_max": lambda given: _clamped(None, given["max"]),
    "leaky_relu": lambda given: [AppliedStep("leaky_relu", (number(given["negative_slope"]),))],
    "elu": lambda given: _exponential(given["alpha"], given["input_scale"], given["scale"]),
    "selu": lambda given: _exponential(*_SELU),
    "celu": lambda given: _exponential(given["alpha"], 1 / given["alpha"]),
    "softplus": lambda given: [AppliedStep("softplus", (number(given["beta"]), number(given["threshold"])))],
    "gelu": lambda given: [AppliedStep("gelu" if given["approximate"] == "none" else "gelu_tanh")],
    "neg": lambda given: [AppliedStep("mul_scalar", (number(-1),))],
    "div": _scaled,
    "rsub": _reversed,
}
