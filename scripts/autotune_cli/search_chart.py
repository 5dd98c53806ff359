"""The chart of a replay: how far above the best each strategy is, against configs tried and against seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from autotune.search import DEFAULT
from autotune.search.simulator import Replay
from autotune_cli.chart import FAINT, INK, OURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # an optional package: only drawing needs it

OTHERS = ("#c9d0da", "#8d99a8", "#e0a458", "#7fb08a")
STYLES = {"exhaustive": ":"}
"""It goes where the prior goes, for as long as both do."""
POINTS = 120
MOST = 0.5
"""Where the axis ends: beyond it a search has hardly begun."""


def draw(runs: dict[str, list[Replay]], title: str, path: Path) -> None:
    """Draw the curves of strategies, means over seeds and layers. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.6), dpi=160, facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.012, ha="left", color=INK, fontsize=14, fontweight="bold")
    left, right = figure.subplots(1, 2, sharey=True)
    replays = [one for of_one in runs.values() for one in of_one]
    _panel(left, "configs of a layer that were tried", runs, max(one.tried for one in replays), _of_layers)
    _panel(right, "seconds", runs, max(one.seconds for one in replays), lambda one, at: [one.excess_at(at)])
    left.xaxis.set_major_formatter("{x:.0%}")
    left.set_title("the best found of a layer", loc="left", color=FAINT, fontsize=11)
    right.set_title("the sum over layers", loc="left", color=FAINT, fontsize=11)
    left.set_ylim(0, None)
    left.set_ylabel("above the best of all", color=FAINT)
    left.legend(frameon=False, labelcolor=INK)
    figure.savefig(path, bbox_inches="tight", pad_inches=0.2)


def _of_layers(one: Replay, share: float) -> list[float]:
    return [one.excess_after(problem, share) for problem in one.best_us]


def _panel(
    axis: Axes,
    label: str,
    runs: dict[str, list[Replay]],
    end: float,
    excess: Callable[[Replay, float], Sequence[float]],
) -> None:
    """One curve a strategy, of the mean of `excess` at each place up to `end`."""
    others = iter(OTHERS)
    places = [end * i / POINTS for i in range(1, POINTS + 1)]
    for name, replays in runs.items():
        values = [fmean(value for one in replays for value in excess(one, place)) for place in places]
        points = [(place, value) for place, value in zip(places, values, strict=True) if value <= MOST]
        ours = name == DEFAULT
        color = OURS if ours else next(others, FAINT)
        axis.plot(
            *zip(*points, strict=True),
            label=name,
            color=color,
            linewidth=2.5 if ours else 1.6,
            linestyle=STYLES.get(name, "-"),
        ) if points else None
    axis.set_xlabel(label, color=FAINT)
    axis.yaxis.set_major_formatter("{x:.0%}")
    axis.grid(axis="y", color="#eef1f5")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
