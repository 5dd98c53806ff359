"""A request for a training step of a model."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.tuner import TuneRequest
from autotune_cli import models


@dataclass(frozen=True, kw_only=True)
class StepRequest(TuneRequest):
    """A request for a training step of a model.

    Attributes:
        model: The model.
        batch: Batch size.
        dtype: Dtype of the tensors that are multiplied: "f16", "bf16" or "f32".
        precision: "tf32" for products in TF32; None otherwise.
    """

    model: models.Model
    batch: int
    dtype: str
    precision: str | None
