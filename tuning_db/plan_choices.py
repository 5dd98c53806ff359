"""The entries of a plan in the database, one for each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def plan_choice(
    layer: str, kernel: int, launch: Mapping[str, int], us: float | None, *, overlap: bool = False
) -> dict[str, Any]:
    """Return an entry of a plan's `choices`.

    Args:
        layer: Name of the layer; in the plan of a training step the text of the problem.
        kernel: Id of the kernel.
        launch: Launch values by name.
        us: Time of the candidate alone in microseconds; None if it is not known.
        overlap: Whether the kernel may start while the kernel before it ends (programmatic dependent launch).
    """
    return {"layer": layer, "kernel": kernel, "launch": dict(launch), "us": us, "overlap": overlap}
