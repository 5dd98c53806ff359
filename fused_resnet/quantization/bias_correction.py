"""Bias correction: the mean error that quantization causes in each output channel is removed by the layer's bias.

A rounded weight changes the sums of its output channel by the change of the weight times the input. The mean of this
error over pixels and images is not 0, and a bias can remove it without any work at run time. Inputs that saturate
shift the mean of the sums, too.

Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction (arXiv 1906.04721), section
4.2, with means over example inputs; Finkelstein et al., Fighting Quantization Bias With Bias (arXiv 1906.03193).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile

import torch

from autotune.ir import ByteFormat, Epilogue, Layer, State, compute, evaluate
from autotune.ir.operators import Conv2d, Gemm
from autotune.ir.reference_run import LayerRun, Operands, run_layers
from fused_resnet.quantization.byte_rules import Wiring, choose_layers
from fused_resnet.quantization.rounding import Rounding, bias_operand
from fused_resnet.quantization.scales import Scales

IMAGES = 128
"""Inputs after which no further batch is used, because the activations of all of them are in memory at the same time.

On the trained ResNet-18 of `autotune accuracy` 256 and 512 images gave the same error, and 64 images a larger one.
"""
_SUMMANDS = {"bias", "add", "add_scalar"}
"""Steps that pass on a change of the mean as it is."""


def has_room(batches: Sequence[torch.Tensor], x: torch.Tensor) -> bool:
    """Return whether a batch is to be added to those for `bias_corrections`: of their shape, up to IMAGES inputs."""
    return not batches or (x.shape == batches[0].shape and sum(map(len, batches)) < IMAGES)


@torch.no_grad()
def bias_corrections(
    form: ByteFormat,
    layers: Sequence[Layer],
    constants: State,
    batches: Sequence[torch.Tensor],
    scales: Scales,
    kept: Mapping[str, str],
) -> dict[str, tuple[float, ...]]:
    """Return what layers in bytes add to their biases, so that the means of their sums are those in float32.

    The layers run in order, each on all batches. The error of a layer is measured on inputs that the layers before it
    computed in bytes, with their corrections. The sum is the value before the activation function: the product, the
    bias, and another branch if it is added next. Rounding is simulated in float32.

    Args:
        form: The format of the bytes.
        layers: The captured layers for the shape of the batches.
        constants: Parameters and buffers of the module, in float32.
        batches: Inputs of one shape.
        scales: Scale of each activation.
        kept: Layers that must not run in bytes, with the reasons.

    Returns:
        For each convolution and linear layer in bytes that has a bias, by name, a number for each output channel.
    """
    wiring = Wiring(layers)
    chosen, _ = choose_layers(wiring, form, kept)
    corrected = {layer.name for layer in layers if layer.name in chosen and _has_bias(layer)}
    if not corrected:
        return {}
    expected = _exact_means(layers, constants, batches, corrected)
    rounding = Rounding(form, wiring, scales, chosen)
    runs = [LayerRun(layers, constants, x) for x in batches]
    corrections = dict[str, tuple[float, ...]]()
    for layer in layers:
        operands = [rounding.read(layer, run.operands(layer)) for run in runs]
        if layer.name in corrected:
            means = torch.stack([_mean_sums(layer, constants, each) for each in operands]).mean(0)
            correction = (expected[layer.name] - means).float()
            corrections[layer.name] = tuple(correction.tolist())
            bias = bias_operand(layer)
            operands = [{**each, bias: each[bias] + correction} for each in operands]
        for run, each in zip(runs, operands, strict=True):
            run.finish(layer, each, rounding.written)
    return corrections


def _has_bias(layer: Layer) -> bool:
    return isinstance(layer.problem, Conv2d | Gemm) and "bias" in layer.problem.epilogue.names


def _exact_means(
    layers: Sequence[Layer], constants: State, batches: Sequence[torch.Tensor], wanted: Collection[str]
) -> dict[str, torch.Tensor]:
    """Return the mean sums of some layers with nothing rounded, by name."""
    means: dict[str, list[torch.Tensor]] = {name: [] for name in wanted}

    def observe(layer: Layer, operands: Operands) -> Operands:
        if layer.name in means:
            means[layer.name].append(_mean_sums(layer, constants, operands))
        return operands

    for x in batches:
        run_layers(layers, constants, x, read=observe)
    return {name: torch.stack(each).mean(0) for name, each in means.items()}


def _mean_sums(layer: Layer, constants: State, operands: Operands) -> torch.Tensor:
    """Return the mean of a layer's sums for each output channel, float64 (k,)."""
    names = layer.problem.epilogue.names
    first = names.index("bias")
    summands = tuple(takewhile(_SUMMANDS.__contains__, names[first:]))
    begin = dataclasses.replace(layer.problem, epilogue=Epilogue((*names[:first], *summands)))
    scalars = tuple(float(evaluate(constants, source)) for source in layer.scalars)
    return compute(begin, operands, scalars)["y"].double().flatten(0, -2).mean(0)
