"""Runs the layers of a network by their references, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from autotune.ir.constant_expr import State, evaluate
from autotune.ir.network import Layer, input_name
from autotune.ir.problem import TENSOR_DTYPES
from autotune.ir.reference import compute

Operands = dict[str, torch.Tensor]
"""The operands of a layer by name."""


class LayerRun:
    """A run of layers. The caller steps through the layers, each by `operands` and then `finish`.

    Args:
        layers: The layers, in order.
        constants: Parameters and buffers of the module.
        inputs: The inputs of the network.

    Attributes:
        values: The activations that later layers read, and those that none reads, by buffer.
    """

    def __init__(self, layers: Sequence[Layer], constants: State, *inputs: torch.Tensor) -> None:
        self._constants, self._device = constants, inputs[0].device
        self._reads = Counter(layer.buffers[operand] for layer in layers for operand in inputs_of(layer))
        self.values = {input_name(i): x for i, x in enumerate(inputs)}

    def operands(self, layer: Layer) -> Operands:
        """Return the inputs and weights of the next layer; an activation is dropped when its last reader takes it."""
        operands = {operand.name: operand for operand in layer.problem.operands()}
        tensors = {
            name: evaluate(self._constants, source)
            .to(self._device, TENSOR_DTYPES[operands[name].dtype])
            .reshape(operands[name].shape)
            for name, source in layer.weights.items()
        }
        for name in inputs_of(layer):
            buffer = layer.buffers[name]
            tensors[name] = self.values[buffer].reshape(operands[name].shape)
            self._reads[buffer] -= 1
            if not self._reads[buffer]:
                del self.values[buffer]
        return tensors

    def finish(
        self,
        layer: Layer,
        operands: Operands,
        written: Callable[[Layer, str, torch.Tensor], torch.Tensor] = lambda layer, name, value: value,
    ) -> None:
        """Compute a layer with the given operands; `written` is that of `run_layers`."""
        scalars = tuple(float(evaluate(self._constants, source)) for source in layer.scalars)
        for name, value in compute(layer.problem, operands, scalars).items():
            self.values[layer.buffers[name]] = written(layer, name, value)


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
    run = LayerRun(layers, constants, x)
    for layer in layers:
        run.finish(layer, read(layer, run.operands(layer)), written)
    return run.values


def inputs_of(layer: Layer) -> list[str]:
    """Return the names of a layer's operands that are activations which it reads."""
    return [operand.name for operand in layer.problem.operands() if operand.role == "input"]
