"""Which of several devices measures which problem."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.ir import Problem

LEAST_SHARE = 0.05
"""Least work of a problem as a share of the heaviest one's: also a light problem is tried with many candidates."""


def device_places(weights: Mapping[Problem, float], count: int) -> dict[Problem, int]:
    """Return a device for each problem: the heaviest problems first, each to the device with the least work.

    Args:
        weights: Shares of the problems in the work.
        count: Number of devices.
    """
    least = LEAST_SHARE * max(weights.values(), default=0.0)
    work, places = [0.0] * count, {}
    for problem in sorted(weights, key=lambda problem: -weights[problem]):
        places[problem] = min(range(count), key=work.__getitem__)
        work[places[problem]] += max(weights[problem], least)
    return places
