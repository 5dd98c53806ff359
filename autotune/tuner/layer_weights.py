"""The weights of networks' problems: their shares of the time. A run spends its time where the networks do."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from autotune.ir import Network, Problem, limit_us
from tuning_db.schema import Device

KEPT_SECONDS = 1.0
"""Age up to which `recent` returns weights again: those of 1,000 problems take 20 ms, and they change slowly."""
_FLOPS_PER_US, _BYTES_PER_US = 1e6, 1e4
"""Rates of a typical device, until those of the real one are known; only their ratio matters."""


class LayerWeights:
    """Weights of problems by their times: measured ones where there are any, else the roofline limit.

    A limit is shorter than the time that a kernel reaches, so limits are multiplied by the median of
    measured time / limit over the problems that were measured. The weights of each network add up to 1, so that a small
    batch size counts as much as a large one.

    Args:
        problems: The problems.
        networks: The networks; a problem counts as often as their layers use it. Without any, it counts as often as it
            occurs among the problems.
        best_us: Maps a problem to its best measured time in microseconds, or None.
    """

    def __init__(
        self, problems: Iterable[Problem], networks: Sequence[Network], best_us: Callable[[Problem], float | None]
    ) -> None:
        given = Counter(problems)
        self._problems = list(given)
        used = [Counter(layer.problem for layer in network.all_layers) for network in networks]
        self._counts = [{problem: count[problem] for problem in self._problems if count[problem]} for count in used]
        self._counts = self._counts or [dict(given)]
        self._best_us = best_us
        self._recent: tuple[float, dict[Problem, float]] = -math.inf, {}
        self.set_rates(_FLOPS_PER_US, _BYTES_PER_US)

    def set_device(self, device: Device) -> None:
        """Use the rates of a device for the problems that were not measured."""
        self.set_rates(device.flops_per_us, device.bytes_per_us)

    def set_rates(self, flops_per_us: float, bytes_per_us: float) -> None:
        """Use these rates for the problems that were not measured."""
        self._limits = {problem: limit_us(problem, flops_per_us, bytes_per_us) for problem in self._problems}

    def __call__(self, problem: Problem) -> float:
        """Return the weight of a problem."""
        return self.all()[problem]

    def all(self) -> dict[Problem, float]:
        """Return the weights of all problems."""
        best = {problem: self._best_us(problem) for problem in self._problems}
        ratios = [us / self._limits[problem] for problem, us in best.items() if us and self._limits[problem]]
        ratio = statistics.median(ratios) if ratios else 1.0
        weights = dict.fromkeys(self._problems, 0.0)
        for counts in self._counts:
            times = {
                problem: count * (best[problem] or ratio * self._limits[problem]) for problem, count in counts.items()
            }
            total = sum(times.values()) or 1.0
            for problem, us in times.items():
                weights[problem] += us / total
        return weights

    def recent(self) -> dict[Problem, float]:
        """Return the weights of all problems as they were at most KEPT_SECONDS ago."""
        now = time.monotonic()
        if now - self._recent[0] > KEPT_SECONDS:
            self._recent = now, self.all()
        return self._recent[1]

    def sorted(self) -> list[Problem]:
        """Return the problems, the heaviest first."""
        weights = self.all()
        return sorted(weights, key=lambda problem: -weights[problem])
