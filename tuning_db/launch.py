"""Launch values of kernels: their canonical text."""

from __future__ import annotations

from collections.abc import Mapping


def launch_text(launch: Mapping[str, int]) -> str:
    """Return the canonical text of launch values: equal for equal values, in whatever order they are given."""
    return " ".join(f"{name}={int(value)}" for name, value in sorted(launch.items()))
