"""Draws the result of `replay.py`: time above the optimum against configs tried and against seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from autotune.search import DEFAULT_SAMPLER
from autotune.tuner import Replay
from autotune_cli.chart import FAINT, INK, OURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # an optional package: only drawing needs it

OTHER_COLORS = ("#c9d0da", "#8d99a8", "#e0a458", "#7fb08a")
LINE_STYLES = {"brute-force": ":", "cmaes": ":"}
"""Curves that cover another: `brute-force` goes through the order of `cost-model`, `cmaes` is close to `tpe`."""
POINTS = 120
BAND = (0.1, 0.9)
"""Quantiles of the seeds between which a sampler's band lies."""
MAX_EXCESS = 0.5
"""Upper end of the vertical axis; a search with a higher excess has hardly begun."""


def draw(runs: dict[str, list[Replay]], title: str, path: Path) -> None:
    """Draw a curve for each sampler, the mean over seeds and layers.

    Args:
        runs: The replays of each sampler.
        title: Title of the figure.
        path: PNG file to write.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.6), dpi=160, facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.012, ha="left", color=INK, fontsize=14, fontweight="bold")
    left, right = figure.subplots(1, 2, sharey=True)
    replays = [one for of_sampler in runs.values() for one in of_sampler]
    end = max(one.seconds for one in replays)
    timed = {name: run for name, run in runs.items() if run[0].is_timed}
    _draw_panel(left, "share of a layer's configs tried", runs, max(one.tried for one in replays), _excess_of_layers)
    _draw_panel(right, "seconds", timed, end, lambda one, at: one.excess_at(at))
    left.xaxis.set_major_formatter("{x:.0%}")
    left.set_title("best time of a layer so far", loc="left", color=FAINT, fontsize=11)
    right.set_title("sum of the layers' best times so far", loc="left", color=FAINT, fontsize=11)
    left.set_ylim(0, None)
    left.set_ylabel("above the optimum", color=FAINT)
    left.legend(frameon=False, labelcolor=INK)
    figure.savefig(path, bbox_inches="tight", pad_inches=0.2)


def _excess_of_layers(one: Replay, share: float) -> float:
    return fmean(one.excess_after(problem, share) for problem in one.best_us)


def _draw_panel(
    axis: Axes,
    label: str,
    runs: dict[str, list[Replay]],
    end: float,
    excess: Callable[[Replay, float], float],
) -> None:
    """Draw `excess` from 0 to `end`: of each sampler the mean over its seeds, and a band of BAND of them."""
    others = iter(OTHER_COLORS)
    places = [end * i / POINTS for i in range(1, POINTS + 1)]
    for name, replays in runs.items():
        is_default = name == DEFAULT_SAMPLER
        color = OURS if is_default else next(others, FAINT)
        values = np.array([[excess(one, place) for one in replays] for place in places])
        shown = values.mean(axis=1) <= MAX_EXCESS
        if shown.any():
            x = np.array(places)[shown]
            axis.plot(
                x,
                values[shown].mean(axis=1),
                label=name,
                color=color,
                linewidth=2.5 if is_default else 1.6,
                linestyle=LINE_STYLES.get(name, "-"),
            )
            low, high = np.quantile(values[shown], BAND, axis=1)
            axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    axis.set_xlabel(label, color=FAINT)
    axis.yaxis.set_major_formatter("{x:.0%}")
    axis.grid(axis="y", color="#eef1f5")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
