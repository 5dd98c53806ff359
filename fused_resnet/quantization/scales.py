"""Scales of activations in 8-bit formats, and the names of activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autotune.ir import S8, Layer

Scales = Mapping[str, float]
"""The real value of 1 in bytes, by the name of the activation (`activation`)."""

Corrections = Mapping[str, Sequence[float]]
"""Name of a layer -> the numbers that are added to its bias, one for each output channel."""


class CalibratedScales(dict[str, float]):
    """The scales of a calibration, the layers that it keeps out of bytes, and the corrections of biases.

    Attributes:
        sensitive: For each layer that stays in the module's dtype because of its values, by name, the reason.
        corrections: What layers in bytes add to their biases.
        precision: The precision that the scales are for, a key of BYTE_PRECISIONS.
    """

    def __init__(
        self,
        scales: Scales,
        sensitive: Mapping[str, str] | None = None,
        corrections: Corrections | None = None,
        precision: str = S8.precision,
    ) -> None:
        super().__init__(scales)
        self.sensitive = dict(sensitive or {})
        self.corrections = {name: tuple(values) for name, values in (corrections or {}).items()}
        self.precision = precision

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle stores: a call with dictionaries, because torch.load fills no other class by default."""
        return type(self), (dict(self), self.sensitive, self.corrections, self.precision)

    def copy(self) -> CalibratedScales:
        """Return other scales with the same contents, where a dictionary's own method would lose the attributes."""
        return self | {}

    def __or__(self, other: Scales) -> CalibratedScales:  # type: ignore[override]
        return CalibratedScales({**self, **other}, self.sensitive, self.corrections, self.precision)


torch.serialization.add_safe_globals([CalibratedScales])


def activation(layer: Layer, operand: str) -> str:
    """Return the name of an activation: that of its layer, followed by the operand's if that is a second output."""
    return layer.name if operand == "y" else f"{layer.name}.{operand}"
