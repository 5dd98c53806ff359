"""Runs captured layers in float32 by their references, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from autotune.ir import INPUT, TENSOR_DTYPES, Layer, State, compute, evaluate

Operands = dict[str, torch.Tensor]
"""The operands of a layer by name."""


@torch.no_grad()
def run_layers(
    layers: Sequence[Layer],
    constants: State,
    x: torch.Tensor,
    read: Callable[[Layer, Operands], Operands] = lambda layer, operands: operands,
    written: Callable[[Layer, str, torch.Tensor], torch.Tensor] = lambda layer, name, value: value,
) -> dict[str, torch.Tensor]:
    """Run layers on one input.

    Args:
        layers: The layers, in order.
        constants: Parameters and buffers of the module.
        x: The input.
        read: (layer, its inputs and weights) -> those that it computes with.
        written: (layer, name of an output, its value) -> the value that other layers read.

    Returns:
        What no layer reads, by buffer: the results of the network.
    """
    reads = Counter(layer.buffers[operand] for layer in layers for operand in inputs_of(layer))
    values = {INPUT: x}
    for layer in layers:
        operands = {operand.name: operand for operand in layer.problem.operands()}
        tensors = {
            name: evaluate(constants, source)
            .to(x.device, TENSOR_DTYPES[operands[name].dtype])
            .reshape(operands[name].shape)
            for name, source in layer.weights.items()
        }
        for name in inputs_of(layer):
            tensors[name] = values[layer.buffers[name]].reshape(operands[name].shape)
            reads[layer.buffers[name]] -= 1
            if not reads[layer.buffers[name]]:
                del values[layer.buffers[name]]
        scalars = tuple(float(evaluate(constants, source)) for source in layer.scalars)
        for name, value in compute(layer.problem, read(layer, tensors), scalars).items():
            values[layer.buffers[name]] = written(layer, name, value)
    return values


def inputs_of(layer: Layer) -> list[str]:
    """Return the names of a layer's operands that are activations which it reads."""
    return [operand.name for operand in layer.problem.operands() if operand.role == "input"]
