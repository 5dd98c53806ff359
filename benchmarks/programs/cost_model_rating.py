"""Rates the families' cost models by a recording: how well their order of the configs agrees with the times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from scipy.stats import spearmanr

from autotune.ir import Problem
from autotune.search import SpaceTrace, TuneTrace

MIN_RANKED = 8
"""Timed configs below which a space has no rank correlation."""


@dataclass(frozen=True)
class LayerRating:
    """How the cost models rate the configs of a layer.

    Attributes:
        correlations: Spearman's rank correlation of costs and times by family, for spaces with MIN_RANKED configs.
        best_us: Best time of all configs.
        found_us: Best time of the candidates; infinite if all of them failed.
    """

    correlations: dict[str, float]
    best_us: float
    found_us: float

    @property
    def regret(self) -> float:
        """Best time of the candidates / best time of all configs - 1."""
        return self.found_us / self.best_us - 1


def rate(trace: TuneTrace, count: int) -> dict[Problem, LayerRating]:
    """Rate the layers of a recording.

    Args:
        trace: The recording.
        count: Candidates of a layer: the configs with the lowest costs, as many of each of its families.
    """
    layers = trace.by_problem()
    return {problem: _rate(layers[problem], best_us, count) for problem, best_us in trace.best_us().items()}


def _rate(spaces: Sequence[SpaceTrace], best_us: float, count: int) -> LayerRating:
    correlations, found_us = {}, math.inf
    for traced in spaces:
        costs, times = traced.space.costs, [result.best_us for result in traced.results]
        timed = [(cost, us) for cost, us in zip(costs, times, strict=True) if us is not None]
        if len(timed) >= MIN_RANKED and len({cost for cost, _ in timed}) > 1:
            correlations[traced.space.family] = float(spearmanr(*zip(*timed, strict=True)).statistic)
        candidates = times[: max(1, count // len(spaces))]
        found_us = min([found_us, *(us for us in candidates if us is not None)])
    return LayerRating(correlations, best_us, found_us)


def tables(rated: dict[Problem, LayerRating], title: str) -> list[Table]:
    """Return a table of the layers with their sum, and one of the families."""
    layers = Table(title=title, title_justify="left", box=None, header_style="bold")
    layers.add_column("layer", no_wrap=True)
    for heading in ("best us", "found us", "regret", "rank correlation"):
        layers.add_column(heading, justify="right")
    for problem, rating in rated.items():
        correlations = list(rating.correlations.values())
        mean = f"{statistics.fmean(correlations):.2f}" if correlations else "-"
        times = (f"{rating.best_us:.1f}", f"{rating.found_us:.1f}", f"{rating.regret:.1%}")
        layers.add_row(problem.short_name, *times, mean)
    best, found = (sum(us) for us in zip(*((one.best_us, one.found_us) for one in rated.values()), strict=True))
    layers.add_row("sum", f"{best:.1f}", f"{found:.1f}", f"{found / best - 1:.1%}", style="bold")

    by_family: dict[str, list[float]] = {}
    for rating in rated.values():
        for family, correlation in rating.correlations.items():
            by_family.setdefault(family, []).append(correlation)
    families = Table(box=None, header_style="bold")
    families.add_column("family")
    for heading in ("layers", "rank correlation", "lowest"):
        families.add_column(heading, justify="right")
    for family, each in sorted(by_family.items()):
        families.add_row(family, str(len(each)), f"{statistics.fmean(each):.2f}", f"{min(each):.2f}")
    return [layers, families]
