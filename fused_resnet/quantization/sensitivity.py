"""Layers that lose most in signed bytes: they stay in the module's dtype, so that the loss is within a limit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from autotune.ir import MAX_BYTE, Layer, State, is_output
from autotune.ir.int8_numerics import quantize_weight
from fused_resnet.quantization.int8_rules import Wiring, choose_layers
from fused_resnet.quantization.reference_run import Operands, inputs_of, run_layers
from fused_resnet.quantization.scales import Scales, activation


def sensitive_layers(
    layers: Mapping[torch.Size, Sequence[Layer]],
    constants: State,
    batches: Sequence[torch.Tensor],
    scales: Scales,
    max_loss: float,
) -> dict[str, str]:
    """Choose the convolutions and linear layers that stay in the module's dtype.

    Each layer's loss is measured with that layer alone in bytes. Of the layers in the order of their losses, as few as
    possible are kept, so that the loss with all others in bytes is within the limit. Rounding is simulated in float32.

    Args:
        layers: The captured layers for each shape of a batch.
        constants: Parameters and buffers of the module, in float32.
        batches: Inputs.
        scales: Scale of each activation.
        max_loss: Largest loss: norm of the differences of the results / norm of the results.

    Returns:
        For each layer that is kept, by name, the reason.
    """
    wirings = {shape: Wiring(each) for shape, each in layers.items()}
    first = wirings[batches[0].shape]
    chosen, _ = choose_layers(first)
    products = [layer.name for layer in first.layers if layer.name in chosen and "weight" in layer.weights]

    def results(in_bytes: Collection[str]) -> torch.Tensor:
        found = [_results(wirings[x.shape], constants, x, scales, in_bytes) for x in batches]
        return torch.cat(found)

    exact = results(())

    def loss(in_bytes: Collection[str]) -> float:
        return float((results(in_bytes) - exact).norm() / exact.norm().clamp_min(1e-300))

    if not products or loss(products) <= max_loss:
        return {}
    alone = {name: loss([name]) for name in products}
    ranked = sorted(products, key=lambda name: -alone[name])
    too_few, enough = 0, len(ranked)  # with all of them kept nothing is lost
    while enough - too_few > 1:
        kept = (too_few + enough) // 2
        if loss(ranked[kept:]) <= max_loss:
            enough = kept
        else:
            too_few = kept
    return {
        name: f"in bytes it alone changes the results by {alone[name]:.2%}, and all layers may change them by "
        f"{max_loss:.2%}"
        for name in ranked[:enough]
    }


def _results(
    wiring: Wiring, constants: State, x: torch.Tensor, scales: Scales, in_bytes: Collection[str]
) -> torch.Tensor:
    """Return all results of the layers in one float64 tensor of one dimension, with some layers in bytes."""

    def read(layer: Layer, operands: Operands) -> Operands:
        if layer.name not in in_bytes:
            return operands
        weight, weight_scale = quantize_weight(operands["weight"])
        rounded = weight.float() * weight_scale.view(-1, *[1] * (weight.dim() - 1))
        activations = {name: in_scale(operands[name], layer.buffers[name]) for name in inputs_of(layer)}
        return {**operands, "weight": rounded, **activations}

    def written(layer: Layer, name: str, value: torch.Tensor) -> torch.Tensor:
        return in_scale(value, layer.buffers[name]) if layer.name in in_bytes else value

    def in_scale(value: torch.Tensor, buffer: str) -> torch.Tensor:
        maker, operand = wiring.maker[buffer]
        scale = scales[activation(maker, operand.name)]
        return (value / scale).round().clamp(-MAX_BYTE, MAX_BYTE) * scale

    values = run_layers(wiring.layers, constants, x, read, written)
    return torch.cat([value.double().flatten() for buffer, value in sorted(values.items()) if is_output(buffer)])
