"""Which of several devices measures which problem."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.ir import Problem
from autotune.search.schedule import MIN_WEIGHT

MIN_DEPTH = 3
"""Candidates at each of several devices: the one that is measured, and two behind it."""


def device_places(weights: Mapping[Problem, float], count: int) -> dict[Problem, int]:
    """Return a device for each problem: the heaviest problems first, each to the device with the least work.

    A problem's work is the share of its studies' turns, which a schedule does not let fall below MIN_WEIGHT.

    Args:
        weights: Shares of the problems in the work.
        count: Number of devices.
    """
    least = MIN_WEIGHT * max(weights.values(), default=0.0)
    work, places = [0.0] * count, {}
    for problem in sorted(weights, key=lambda problem: -weights[problem]):
        places[problem] = min(range(count), key=work.__getitem__)
        work[places[problem]] += max(weights[problem], least)
    return places
