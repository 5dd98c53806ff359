"""Which layers of a captured network run in signed bytes: by rule, so that it can be told in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.ir import (
    INPUT,
    MAX_OPERANDS,
    MAX_SCALARS,
    OUTPUT,
    AvgPool2d,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalAvgPool2d,
    Layer,
    MaxPool2d,
    Operand,
)

GRANULE = 16
"""Channels that kernels read and write at a time."""
LONGEST_SUM = 2**31 // 2**14
"""Products of signed bytes that an int32 surely holds."""
KEEP_UNIT = {"relu", "leaky_relu", "scale", "mul_scalar"}
"""Steps that do the same whatever 1 stands for."""
DIVIDED = {"bias", "add_scalar", "clamp"}
"""Steps that do so if their constants are divided by it."""

_FOLLOWERS = (AvgPool2d, MaxPool2d, GlobalAvgPool2d, Elementwise)
"""Problems that take bytes where they are given some."""


class Wiring:
    """Who makes and who reads the activations of some layers."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.maker: dict[str, tuple[Layer, Operand]] = {}
        self.inputs: dict[str, list[str]] = {}
        for layer in layers:
            operands = [operand for operand in layer.problem.operands() if operand.name in layer.buffers]
            self.inputs[layer.name] = [o.name for o in operands if o.role == "input"]
            self.maker |= {layer.buffers[o.name]: (layer, o) for o in operands if o.role == "output"}

    def makers(self, layer: Layer) -> list[Layer]:
        """The layers that make what a layer reads."""
        read = (layer.buffers[name] for name in self.inputs[layer.name])
        return [self.maker[buffer][0] for buffer in read if buffer in self.maker]

    def readers(self, layer: Layer) -> list[Layer]:
        """The layers that read what a layer makes."""
        return [other for other in self.layers if any(maker is layer for maker in self.makers(other))]


def choose_layers(wiring: Wiring) -> tuple[set[str], dict[str, str]]:
    """Names of the layers in bytes, and why the other convolutions and linear layers stay as they are."""
    kept = _kept(wiring)
    while True:
        chosen = _chosen(wiring, kept)
        alone = [
            layer.name
            for layer in wiring.layers
            if layer.name in chosen
            and not chosen & {other.name for other in (*wiring.makers(layer), *wiring.readers(layer))}
        ]
        if not alone:
            return chosen, kept
        kept |= dict.fromkeys(alone, "alone among others: casts would cost more than bytes gain")


def _kept(wiring: Wiring) -> dict[str, str]:
    """The convolutions and linear layers that are not for bytes, and why."""
    products = [layer for layer in wiring.layers if isinstance(layer.problem, Conv2d | Gemm)]
    before, behind = set[str](), set[str]()  # layers with a product before them, and behind them
    names = {layer.name for layer in products}
    for layer in wiring.layers:
        if any(maker.name in names | before for maker in wiring.makers(layer)):
            before.add(layer.name)
    for layer in reversed(wiring.layers):
        if layer.name in names | behind:
            behind |= {maker.name for maker in wiring.makers(layer)}
    kept = {}
    for layer in products:
        if layer.name not in before or INPUT in layer.buffers.values():
            kept[layer.name] = "the first: it reads the input"
        elif layer.name not in behind or OUTPUT in layer.buffers.values():
            kept[layer.name] = "the last: it makes the result"
        elif why := _unfit(layer):
            kept[layer.name] = why
    return kept


def _unfit(layer: Layer) -> str | None:
    """Why a layer gains nothing in bytes, or cannot be in them."""
    problem, chain = layer.problem, layer.problem.epilogue
    conv = problem.as_conv2d if isinstance(problem, Gemm) else problem
    assert isinstance(conv, Conv2d)
    c, k = conv.c // conv.groups, conv.k // conv.groups
    if c == 1 and conv.groups > 1:
        return "depthwise: bound by memory, with few products"
    if c % GRANULE or k % GRANULE:
        return f"channels that are no multiples of {GRANULE}"
    if conv.r * conv.s * c >= LONGEST_SUM:
        return "sums that could overflow int32"
    changes = sum(step.name not in KEEP_UNIT | DIVIDED for step in chain.steps)
    if chain.scalars + changes + 1 > MAX_SCALARS or len(problem.operands()) + 1 > MAX_OPERANDS:
        return "a chain too long for the constants that bytes need"
    return None


def _chosen(wiring: Wiring, kept: dict[str, str]) -> set[str]:
    """All convolutions and linear layers but those kept, and what is between them and takes bytes."""
    chosen = set[str]()
    for layer in wiring.layers:
        if isinstance(layer.problem, Conv2d | Gemm):
            taken = layer.name not in kept
        else:
            made = wiring.maker.get(layer.buffers.get("x", ""))
            ends = {INPUT, OUTPUT} & set(layer.buffers.values())
            taken = isinstance(layer.problem, _FOLLOWERS) and not ends and made is not None and made[0].name in chosen
        if taken:
            chosen.add(layer.name)
    return chosen
