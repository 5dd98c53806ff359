"""Scales of activations in signed bytes, and the names that they go by."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.ir import Layer

Scales = Mapping[str, float]
"""What a byte stands for, by the name of the activation (`activation`)."""


def activation(layer: Layer, operand: str) -> str:
    """The name of what a layer writes: its own, or with the operand's behind it if that is a second output."""
    return layer.name if operand == "y" else f"{layer.name}.{operand}"
