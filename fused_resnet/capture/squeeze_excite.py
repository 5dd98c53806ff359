"""Squeeze-and-excitation: x * gate(w2 act(w1 mean(x) + b1) + b2), of linear layers or 1x1 convolutions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import fx

from autotune.ir import ConstantSource, Problem
from autotune.ir.operators import GATE_ACTIVATIONS, HIDDEN_ACTIVATIONS, SeTail, SqueezeExcite, stored_shape
from fused_resnet.capture.layer_builder import LayerBuilder
from fused_resnet.capture.lower import Lowering
from fused_resnet.capture.nodes import arguments, name_of
from fused_resnet.torch_arguments import pair


@dataclass(frozen=True)
class _Product:
    """A matrix product with bias: its input, its constants and its number of outputs."""

    x: fx.Node
    weight: ConstantSource
    bias: ConstantSource
    outputs: int


def squeeze_excite(lowering: Lowering, node: fx.Node) -> bool:
    """Add a layer for a product of x and a gate computed from x; return whether the node is such a product."""
    for x, gate in (node.args, node.args[::-1]):
        if isinstance(x, fx.Node) and isinstance(gate, fx.Node) and _gated(lowering, node, x, gate):
            return True
    return False


def _gated(lowering: Lowering, node: fx.Node, x: fx.Node, gate: fx.Node) -> bool:
    value = lowering.value(x)
    if value is None or len(value.shape) != 4:
        return False
    n, h, w, c = stored_shape(value.shape)
    if _shape(gate) != (n, c, 1, 1):
        return False
    gate_name, logits = _before(lowering, gate, GATE_ACTIVATIONS)
    second = _product(lowering, logits, n)
    act, sums = _before(lowering, second.x, HIDDEN_ACTIVATIONS) if second else ("", None)
    first = _product(lowering, sums, n)
    mean = _alone(lowering, first.x) if first else None
    if first is None or second is None or mean is None or not _is_mean(mean, x):
        return False
    problem: Problem = SeTail(n=n, h=h, w=w, c=c, hidden=first.outputs, dtype=lowering.dtype)
    if (act, gate_name) != ("relu", "sigmoid"):
        problem = SqueezeExcite(n=n, h=h, w=w, c=c, hidden=first.outputs, act=act, gate=gate_name, dtype=lowering.dtype)
    weights = {"w1": first.weight, "b1": first.bias, "w2": second.weight, "b2": second.bias}
    lowering.add(node, LayerBuilder(lowering.name(node, "se"), problem, {"x": value.buffer}, weights, values=[value]))
    return True


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    """Return the shape of a node's tensor; None for a number, which `.item()` yields."""
    value = node.meta["val"]
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def _alone(lowering: Lowering, node: fx.Node) -> fx.Node | None:
    """Return the node that computed a value, past any reshapes, if only one operation reads it."""
    return lowering.origin(node) if lowering.sole(node) else None


def _before(lowering: Lowering, node: fx.Node, names: Collection[str]) -> tuple[str, fx.Node | None]:
    """Return the name and the input of the operator that computed a node, if it is one of these; else "" and None."""
    made = _alone(lowering, node)
    if made and name_of(made) in names and isinstance(made.args[0], fx.Node):
        return name_of(made), made.args[0]
    return "", None


def _product(lowering: Lowering, node: fx.Node | None, batch: int) -> _Product | None:
    """Return the linear layer, or the 1x1 convolution of 1x1 images, that computed a node; else None."""
    made = _alone(lowering, node) if node else None
    if made is None or name_of(made) not in ("linear", "conv2d"):
        return None
    given = arguments(made)
    weight, bias = lowering.constant(given["weight"]), lowering.constant(given["bias"])
    if weight is None or bias is None or given.get("groups", 1) != 1 or any(size != 1 for size in weight.shape[2:]):
        return None
    inputs, outputs = weight.shape[1], weight.shape[0]
    if name_of(made) == "linear":
        fits = prod(_shape(given["input"]) or ()) == batch * inputs
    else:
        ends = _shape(given["input"]), _shape(made)
        fits = ends == ((batch, inputs, 1, 1), (batch, outputs, 1, 1)) and not _is_padded(given["padding"])
    if not fits:
        return None
    return _Product(given["input"], weight.source, bias.source, outputs)


def _is_padded(padding: str | int | Sequence[int]) -> bool:
    """Return whether a 1x1 convolution has padding; neither "same" nor "valid" adds any."""
    return not isinstance(padding, str) and any(pair(padding))


def _is_mean(node: fx.Node, x: fx.Node) -> bool:
    """Return whether a node is the mean of x over its pixels."""
    if node.args[0] is not x:
        return False
    if name_of(node) == "mean":
        return sorted(int(axis) % 4 for axis in arguments(node).get("dim") or ()) == [2, 3]
    return name_of(node) == "adaptive_avg_pool2d" and list(node.args[1]) in ([1, 1], [1])  # type: ignore[arg-type]
