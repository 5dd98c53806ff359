"""The sets of layers, by name; what imports torch, such as their problems, is in layer_sets.py."""

from __future__ import annotations

from pathlib import Path

_PACKAGED = Path(__file__).parent / "sets"
LAYERS = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[3] / "benchmarks" / "layers"
"""The folder of the sets: package data in a wheel, benchmarks/layers in a checkout."""


def known_sets() -> list[str]:
    """Return the names of the sets."""
    return sorted(path.stem for path in LAYERS.glob("*.txt"))
