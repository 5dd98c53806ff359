"""What became of a candidate, and what samples say of it: median, spread, and an interval that holds the median."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Result:
    """What became of one candidate: its times in microseconds, or why there are none.

    status: "ok", "refused" (it does not solve the problem), "wrong", "unstable" (other bits in another run), "leaks",
    "crashed" or "timed_out"; error: for all but "ok", a sentence.
    """

    status: str
    error: str | None = None
    relative_error: float | None = None
    median_us: float | None = None
    spread_us: float | None = None
    samples_us: list[float] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


def timed(
    samples: Sequence[float], details: dict[str, Any] | None = None, relative_error: float | None = None
) -> Result:
    """A result from samples: median, interquartile range and, in the details, the median's interval."""
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    interval = [round(value, 4) for value in median_interval(samples)]
    return Result(
        "ok",
        relative_error=relative_error,
        median_us=statistics.median(samples),
        spread_us=quartiles[2] - quartiles[0],
        samples_us=[round(sample, 4) for sample in samples],
        details={**(details or {}), "interval_us": interval},
    )


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values, between which the median of what they were drawn from lies with 95 % confidence.

    The sign test's interval: it assumes nothing of their distribution. Fewer than six values give their whole range,
    which holds the median with less than 95 %: all of n values lie on one side of it with probability 2 / 2**n.
    """
    ordered, cut, tail = sorted(values), 0, 1
    while tail + math.comb(len(ordered), cut + 1) <= 0.025 * 2 ** len(ordered):
        cut += 1
        tail += math.comb(len(ordered), cut)
    return ordered[cut], ordered[-1 - cut]
