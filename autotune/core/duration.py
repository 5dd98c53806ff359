"""Durations as text: "90s", "5m", "1h"."""

from __future__ import annotations

import re

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def seconds_of(duration: str | float) -> float:
    """Return the seconds of a number, or of a text such as "90s", "5m", "1h" or "90".

    Raises:
        ValueError: It is not a duration.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(duration))
    if not found:
        raise ValueError(f"'{duration}' is not a time: write 90s, 5m or 1h")
    return float(found[1]) * _UNITS[found[2]]
