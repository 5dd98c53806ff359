"""Several objectives as one, for a model of a single value.

`scalarize` is the augmented Tchebycheff function of ParEGO (Knowles 2006) on logarithms. For some weights its minimum
is in a concave part of the Pareto front. A weighted sum of logarithms, or a product of the objectives, has its minimum
on the front's convex hull, whatever the weights.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product

LogValues = tuple[float, ...]
"""The logarithms of the objectives of a result."""
Weights = tuple[float, ...]
"""A weight of each objective."""

AUGMENTATION = 0.05
"""The paper's rho: a share of the weighted sum. It prefers, of points with equal maxima, the one that dominates."""
WEIGHT_STEPS = 10
"""Steps from one objective to the other of two: 11 weight vectors. More take longer until each had its turn."""


@cache
def weight_vectors(num_objectives: int) -> tuple[Weights, ...]:
    """Return evenly distributed weights of some objectives; a single one has the weight 1.

    The largest weight of each vector is 1, so that a difference of scalarized values is relative to an objective.
    """
    steps = WEIGHT_STEPS // max(1, num_objectives - 1)  # 21 vectors for three objectives
    found = (steps_of for steps_of in product(range(steps + 1), repeat=num_objectives) if sum(steps_of) == steps)
    return tuple(tuple(step / max(steps_of) for step in steps_of) for steps_of in found)


def scalarize(point: LogValues, ideal: LogValues, weights: Weights) -> float:
    """Return the value to minimize for some weights.

    Args:
        point: A result.
        ideal: The lowest value of each objective for the same problem.
        weights: The weights.

    Returns:
        The value. A single objective is its own value, whatever its ideal is.
    """
    if len(point) == 1:
        return point[0]
    terms = [weight * (value - best) for value, best, weight in zip(point, ideal, weights, strict=True)]
    return max(terms) + AUGMENTATION * sum(terms)


class ParetoFront:
    """The results that no other result dominates."""

    def __init__(self) -> None:
        self._points: list[LogValues] = []

    def add(self, point: LogValues) -> bool:
        """Add a result; return False if a known one is at least as good in each objective."""
        if any(_is_as_good(known, point) for known in self._points):
            return False
        self._points = [*(known for known in self._points if not _is_as_good(point, known)), point]
        return True

    @property
    def ideal(self) -> LogValues:
        """The lowest value of each objective; of no results, no values."""
        return tuple(map(min, zip(*self._points, strict=True)))

    def least(self, ideal: LogValues, weights: Weights) -> float:
        """Return the least scalarized value; infinite without results."""
        return min((scalarize(point, ideal, weights) for point in self._points), default=math.inf)


def _is_as_good(one: LogValues, other: LogValues) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))
