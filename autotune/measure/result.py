"""The result of a measurement: its status, and the median, spread and confidence interval of its samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

TRIAL_STEPS = ("load", "verify", "time")
"""Steps of a trial in the measuring process, in their order; `details["seconds"]` has the time of each."""


@dataclass(frozen=True)
class Result:
    """The times of one candidate in microseconds, or the reason why there are none.

    status: "ok", "refused" (the kernel does not support the problem), "wrong", "unstable" (another run gave other
        bits), "leaks", "crashed" or "timed_out"; `CandidateBench.run_library` also gives "slow" and "failed".
    error: One sentence; None if the status is "ok".
    relative_error: Norm of the difference from the reference over the norm of the reference.
    median_us, spread_us: Median and interquartile range of `samples_us`.
    details: Everything else that is stored with the measurement.
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
    """Return an "ok" result: median, interquartile range and, in the details, the interval of the median."""
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
    """Return a confidence interval of at least 95 % for the median of the distribution of `values`.

    The interval lies between two order statistics, x_(k+1) and x_(n-k), with the largest k for which
    P(B <= k) <= 0.025, where B ~ Binomial(n, 1/2) counts the values below the median. It is the interval of the sign
    test and needs no assumption on the distribution (Conover, Practical Nonparametric Statistics, section 3.2).

    Fewer than six values give their whole range, which holds the median with less than 95 %: all n values lie on one
    side of the median with probability 2 / 2**n.
    """
    ordered, cut, tail = sorted(values), 0, 1
    while tail + math.comb(len(ordered), cut + 1) <= 0.025 * 2 ** len(ordered):
        cut += 1
        tail += math.comb(len(ordered), cut)
    return ordered[cut], ordered[-1 - cut]
