"""The activations between the layers of a network: their operands, their places in memory, and tensors for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from autotune.ir import TENSOR_DTYPES, Layer, Network, Operand
from autotune.runtime.memory_planner import Arena, LayerAccess, plan_memory


def activations(layers: Sequence[Layer], callers: Collection[str]) -> dict[str, Operand]:
    """Return the activations between layers by buffer name, each as the operand of the layer that writes it.

    Args:
        layers: The layers.
        callers: Names of the caller's tensors, which are left out.
    """
    return {
        name: operand
        for layer in layers
        for operand in layer.problem.operands()
        if operand.role == "output" and (name := layer.buffers[operand.name]) not in callers
    }


def place(layers: Sequence[Layer], operands: Mapping[str, Operand]) -> Arena:
    """Return the places of activations in one block of memory."""
    accesses = [LayerAccess(frozenset(layer.reads), frozenset(layer.writes)) for layer in layers]
    return plan_memory({name: operand.bytes for name, operand in operands.items()}, accesses)


@dataclass(frozen=True)
class ActivationPlace:
    """Where an activation lies in the memory of a network, and when.

    Attributes:
        name: Its buffer.
        offset: Offset in the block of all activations, in bytes.
        bytes: Its size.
        first: Position of the layer that writes it, in the order in which the layers are launched.
        last: Position of the last layer that reads it.
    """

    name: str
    offset: int
    bytes: int
    first: int
    last: int


def activation_places(layers: Sequence[Layer], callers: Collection[str]) -> list[ActivationPlace]:
    """Return the places of the activations between layers that run in this order, as a NetworkPlan has them.

    Args:
        layers: The layers.
        callers: Names of the caller's tensors, which lie elsewhere.
    """
    operands = activations(layers, callers)
    arena = place(layers, operands)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, layer in enumerate(layers):
        for name in (*layer.reads, *layer.writes):
            first.setdefault(name, i)
            last[name] = i
    return [
        ActivationPlace(name, arena.offsets[name], operand.bytes, first[name], last[name])
        for name, operand in operands.items()
    ]


def make_buffers(network: Network, device: torch.device) -> dict[str, torch.Tensor]:
    """Return one tensor for each activation between the layers of a network and its alternatives, by buffer name."""
    return {
        name: torch.empty(operand.shape, dtype=TENSOR_DTYPES[operand.dtype], device=device)
        for name, operand in activations(network.all_layers, network.callers).items()
    }
