"""Arguments of torch's operators on images."""

from __future__ import annotations

from collections.abc import Sequence


def pair(value: int | Sequence[int]) -> tuple[int, int]:
    """Return the numbers of height and width of an argument, which may be one number for both."""
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
