"""The loss curves of trainings, and how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import sqrt
from statistics import fmean

TORCH, OURS = "torch", "autotune"
POINTS = 40
"""Points of a curve."""


@dataclass(frozen=True)
class Run:
    """One training: the way it was computed, its seed, the loss of each step, the final accuracy and its time."""

    way: str
    seed: int
    losses: list[float]
    top1: float
    seconds: float

    def curve(self) -> list[float]:
        """Return the mean losses of up to POINTS equal parts of the run."""
        parts = min(POINTS, len(self.losses))
        ends = [len(self.losses) * i // parts for i in range(parts + 1)]
        return [fmean(self.losses[begin:end]) for begin, end in pairwise(ends)]


def compared(runs: Sequence[Run]) -> dict[str, float | None]:
    """Return how far curves are apart, as root mean square differences; None while runs are missing.

    Returns:
        "deviation", of torch's curve and that on tuned kernels with the first seed, and "spread", the mean over all
        pairs of torch's curves, which have different seeds.
    """

    def apart(one: Run, other: Run) -> float:
        return sqrt(fmean((a - b) ** 2 for a, b in zip(one.curve(), other.curve(), strict=True)))

    theirs, ours = [run for run in runs if run.way == TORCH], [run for run in runs if run.way == OURS]
    pairs = [apart(*pair) for pair in combinations(theirs, 2)]
    return {
        "deviation": apart(theirs[0], ours[0]) if theirs and ours else None,
        "spread": fmean(pairs) if pairs else None,
    }
