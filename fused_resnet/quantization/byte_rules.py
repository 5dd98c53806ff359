"""Rules for the layers of a captured network that run in an 8-bit format. Each exception has a reason in a sentence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from autotune.ir import MAX_OPERANDS, MAX_SCALARS, ByteFormat, Epilogue, Layer, Operand, is_input, is_output
from autotune.ir.operators import AvgPool2d, Conv2d, Elementwise, Gemm, GlobalAvgPool2d, MaxPool2d
from fused_resnet.quantization.scales import activation

GRANULE = 16
"""Channels that a kernel reads or writes in one 16-byte access."""
KEEP_SCALE = {"relu", "leaky_relu", "prelu", "abs", "scale", "mul_scalar"}
"""Steps that are the same on values of any scale."""
DIVIDED = {"bias", "add_scalar", "clamp"}
"""Steps that are the same on scaled values if their constants are divided by the scale."""

_TENSOR_STEPS = {"add", "store"}
"""Steps with tensors that can run in bytes."""
_FOLLOWERS = (AvgPool2d, MaxPool2d, GlobalAvgPool2d, Elementwise)
"""Problems that run in bytes if their input is in bytes."""


class Wiring:
    """The layers that write and read each activation.

    Attributes:
        layers: All layers, in order.
        maker: The layer that writes each buffer, and its operand there.
        inputs: Names of the input operands of each layer, by the layer's name.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.maker: dict[str, tuple[Layer, Operand]] = {}
        self.inputs: dict[str, list[str]] = {}
        for layer in layers:
            operands = [operand for operand in layer.problem.operands() if operand.name in layer.buffers]
            self.inputs[layer.name] = [o.name for o in operands if o.role == "input"]
            self.maker |= {layer.buffers[o.name]: (layer, o) for o in operands if o.role == "output"}

    def makers(self, layer: Layer) -> list[Layer]:
        """Return the layers whose results a layer reads."""
        read = (layer.buffers[name] for name in self.inputs[layer.name])
        return [self.maker[buffer][0] for buffer in read if buffer in self.maker]

    def readers(self, layer: Layer) -> list[Layer]:
        """Return the layers that read the results of a layer."""
        return [other for other in self.layers if any(maker is layer for maker in self.makers(other))]


def choose_layers(
    wiring: Wiring, form: ByteFormat, sensitive: Mapping[str, str] | None = None
) -> tuple[set[str], dict[str, str]]:
    """Choose the layers that run in bytes.

    Args:
        wiring: The layers.
        form: The format of the bytes.
        sensitive: Layers that must not run in bytes, with the reasons.

    Returns:
        The names of these layers, and for each other convolution or linear layer the reason.
    """
    names = {layer.name for layer in wiring.layers}
    kept = {name: reason for name, reason in (sensitive or {}).items() if name in names} | _kept(wiring, form)
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
        kept |= dict.fromkeys(alone, "its neighbors are not in bytes: the casts would cost more than bytes gain")


def layers_with(infinite: Collection[str], layers: Sequence[Layer], form: ByteFormat) -> dict[str, str]:
    """Return the layers that would run in bytes although they read or write infinite values, with the reasons.

    Args:
        infinite: Names of the activations that hold infinite values, such as masked logits.
        layers: All layers.
        form: The format of the bytes, which has no infinity.
    """
    if not infinite:
        return {}
    wiring = Wiring(layers)
    names = {buffer: activation(layer, operand.name) for buffer, (layer, operand) in wiring.maker.items()}
    chosen, _ = choose_layers(wiring, form)
    return {
        layer.name: "it reads or writes infinite values, which 8-bit formats do not have"
        for layer in layers
        if layer.name in chosen and any(names.get(buffer) in infinite for buffer in (*layer.reads, *layer.writes))
    }


def _kept(wiring: Wiring, form: ByteFormat) -> dict[str, str]:
    """Return the reason for each convolution or linear layer that cannot run in bytes or would not gain."""
    products = [layer for layer in wiring.layers if isinstance(layer.problem, Conv2d | Gemm)]
    before, behind = set[str](), set[str]()  # layers with a product before and after them
    names = {layer.name for layer in products}
    for layer in wiring.layers:
        if any(maker.name in names | before for maker in wiring.makers(layer)):
            before.add(layer.name)
    for layer in reversed(wiring.layers):
        if layer.name in names | behind:
            behind |= {maker.name for maker in wiring.makers(layer)}
    kept = {}
    for layer in products:
        if layer.name not in before or any(map(is_input, layer.reads)):
            kept[layer.name] = "it is the first and reads the input"
        elif layer.name not in behind or any(map(is_output, layer.writes)):
            kept[layer.name] = "it is the last and makes the result"
        elif why := _why_unfit(layer, form):
            kept[layer.name] = why
    return kept


def _why_unfit(layer: Layer, form: ByteFormat) -> str | None:
    """Return why a layer would not gain in bytes or cannot run in bytes; None if it would gain."""
    problem, chain = layer.problem, layer.problem.epilogue
    conv = problem.as_conv2d if isinstance(problem, Gemm) else problem
    assert isinstance(conv, Conv2d)
    c, k = conv.c // conv.groups, conv.k // conv.groups
    if c == 1 and conv.groups > 1:
        return "depthwise: bound by memory, not by arithmetic"
    if c % GRANULE or k % GRANULE:
        return f"its channels (per group) are not multiples of {GRANULE}"
    if form.overflows(conv.r * conv.s * c):
        return "its sums could overflow int32"
    if not _tensors_fit(chain):
        return "its epilogue multiplies or subtracts another activation"
    if not _has_room(layer):
        return "its epilogue has no room for the constants that bytes need"
    return None


def _has_room(layer: Layer) -> bool:
    """Return whether a layer can take a conversion at each step that may change the scale, and one more constant."""
    problem, chain = layer.problem, layer.problem.epilogue
    changes = sum(step.name not in KEEP_SCALE | DIVIDED for step in chain.steps)
    return problem.scalars + chain.scalars + changes + 1 <= MAX_SCALARS and len(problem.operands()) < MAX_OPERANDS


def _tensors_fit(chain: Epilogue) -> bool:
    """Return whether all steps that read or write tensors can run in bytes."""
    steps = [step for step in chain.steps if any(a.kind not in ("vector", "scalar") for a in step.arguments)]
    return all(step.name in _TENSOR_STEPS for step in steps)


def _chosen(wiring: Wiring, kept: dict[str, str]) -> set[str]:
    """Return the products that are not kept, and the layers between them that can run in bytes."""
    chosen = set[str]()
    for layer in wiring.layers:
        if isinstance(layer.problem, Conv2d | Gemm):
            taken = layer.name not in kept
        else:
            made = wiring.maker.get(layer.buffers.get("x", ""))
            ends = any(map(is_input, layer.reads)) or any(map(is_output, layer.writes))
            follows = (
                isinstance(layer.problem, _FOLLOWERS) and _tensors_fit(layer.problem.epilogue) and _has_room(layer)
            )
            taken = follows and not ends and made is not None and made[0].name in chosen and layer.name not in kept
        if taken:
            chosen.add(layer.name)
    return chosen
