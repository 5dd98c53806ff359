"""Layers that lose most in an 8-bit format: they stay in the module's dtype, so that the loss is within a limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from autotune.ir import ByteFormat, Layer, State, is_output
from autotune.ir.reference_run import run_layers
from fused_resnet.quantization.byte_rules import Wiring, choose_layers
from fused_resnet.quantization.rounding import Rounding
from fused_resnet.quantization.scales import Corrections, Scales


def sensitive_layers(
    form: ByteFormat,
    layers: Mapping[torch.Size, Sequence[Layer]],
    constants: State,
    batches: Sequence[torch.Tensor],
    scales: Scales,
    max_loss: float,
    corrections: Callable[[Mapping[str, str]], Corrections],
    unfit: Mapping[str, str],
) -> dict[str, str]:
    """Choose the convolutions and linear layers that stay in the module's dtype.

    Each layer's loss is measured with that layer alone in bytes, without a correction. Of the layers in the order of
    their losses, as few as possible are kept, so that the loss of the network, with all other layers and corrections
    as they will run, is within the limit. Rounding is simulated in float32.

    Args:
        form: The format.
        layers: The captured layers for each shape of a batch.
        constants: Parameters and buffers of the module, in float32.
        batches: Inputs.
        scales: Scale of each activation.
        max_loss: Largest loss: norm of the differences of the results / norm of the results.
        corrections: (layers that are kept, with reasons) -> what the others add to their biases.
        unfit: Layers that are kept anyway, with the reasons.

    Returns:
        For each layer that is kept, by name, the reason.
    """
    wirings = {shape: Wiring(each) for shape, each in layers.items()}
    first = wirings[batches[0].shape]
    chosen, _ = choose_layers(first, form, unfit)
    products = [layer.name for layer in first.layers if layer.name in chosen and "weight" in layer.weights]

    def results(in_bytes: Callable[[Wiring], Collection[str]], corrected: Corrections) -> torch.Tensor:
        roundings = {
            shape: Rounding(form, wiring, scales, in_bytes(wiring), corrected) for shape, wiring in wirings.items()
        }
        return torch.cat([_results(constants, x, roundings[x.shape]) for x in batches])

    exact = results(lambda wiring: (), {})

    def loss(in_bytes: Callable[[Wiring], Collection[str]], corrected: Corrections) -> float:
        return float(differences(results(in_bytes, corrected), exact).norm() / finite_norm(exact))

    def loss_of(name: str) -> float:
        return loss(lambda wiring: (name,), {})

    def loss_without(names: Collection[str]) -> float:
        kept = {**unfit, **dict.fromkeys(names, "")}
        return loss(lambda wiring: choose_layers(wiring, form, kept)[0], corrections(kept))

    if not products or loss_without(()) <= max_loss:
        return {}
    alone = {name: loss_of(name) for name in products}
    ranked = sorted(products, key=lambda name: -alone[name])
    too_few, enough = 0, len(ranked)  # with all of them kept nothing is lost
    while enough - too_few > 1:
        kept = (too_few + enough) // 2
        if loss_without(ranked[:kept]) <= max_loss:
            enough = kept
        else:
            too_few = kept
    return {
        name: f"in bytes it alone changes the results by {alone[name]:.2%}, and all layers may change them by "
        f"{max_loss:.2%}"
        for name in ranked[:enough]
    }


def differences(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return actual - expected; 0 where both are the same infinity, such as that of a masked logit."""
    return (actual - expected).masked_fill(actual == expected, 0.0)


def finite_norm(values: torch.Tensor) -> torch.Tensor:
    """Return the norm of the finite values, but no 0, by which nothing can be divided."""
    norm: torch.Tensor = values.masked_fill(values.isinf(), 0.0).norm()
    return norm.clamp_min(1e-300)


def _results(constants: State, x: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """Return all results of the layers in one float64 tensor of one dimension, with some layers in bytes."""
    values = run_layers(rounding.wiring.layers, constants, x, rounding.read, rounding.written)
    return torch.cat([value.double().flatten() for buffer, value in sorted(values.items()) if is_output(buffer)])
