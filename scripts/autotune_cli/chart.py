"""Draws the bar chart of a record of `autotune bench`: stream time and latency of each batch size.

For more than FEW batch sizes the chart has the stream times alone, two batch sizes in a row.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune.core import number
from autotune_cli.baselines import FROM_ANOTHER

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # an optional package: only drawing needs it

OURS, THEIRS, INK, FAINT = "#2f6fde", "#c9d0da", "#1c2430", "#6b7686"
BAR_INCHES, PANEL_INCHES, HEAD_INCHES = 0.38, 0.55, 0.45
METRICS = {"stream": "time of back-to-back calls", "latency": "latency of one call"}
FEW = 2
"""Up to this many batch sizes have both times drawn."""


def unit(microseconds: list[float]) -> tuple[str, float]:
    """Return a unit for these times, and its length in microseconds."""
    return ("ms", 1e3) if max(microseconds, default=0) >= 1e5 else ("us", 1)


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw the median times of a record.

    Raises:
        ValueError: The record has no times.
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    sizes = sorted((batch["batch"], bars) for batch in record["batches"] if (bars := _ran(batch)))
    if not sizes:
        raise ValueError("no variant ran")
    metrics = list(METRICS)[: 2 if len(sizes) <= FEW else 1]
    panels = [(size, bars, metric) for size, bars in sizes for metric in metrics]
    rows = [panels[i : i + 2] for i in range(0, len(panels), 2)]
    heights = [PANEL_INCHES + BAR_INCHES * max(len(bars) for _, bars, _ in row) for row in rows]
    layout = ConstrainedLayoutEngine(h_pad=0.08)
    figure = Figure(figsize=(12, HEAD_INCHES + sum(heights)), dpi=160, facecolor="white", layout=layout)
    arguments, machine = record["arguments"], record["machine"]
    kind = ", training step" if arguments.get("train") else ""
    dtypes = ", ".join(filter(None, (arguments["dtype"], arguments.get("precision"))))
    title = f"{arguments['model']}{kind}, {dtypes}, {machine['device']}"
    figure.suptitle(title, x=0.012, ha="left", color=INK, fontsize=14, fontweight="bold")
    grid = figure.subplots(len(rows), 2, squeeze=False, height_ratios=heights)
    for axes, row in zip(grid, rows, strict=True):
        for axis, (size, bars, metric) in zip(axes, row, strict=False):
            _panel(axis, f"batch {size}: {METRICS[metric]}", [_bar(name, variant, metric) for name, variant in bars])
        names = [[name for name, _ in bars] for _, bars, _ in row]
        if len(row) == 2 and names[0] == names[1]:
            axes[1].set_yticks([])  # the names stand at the panel to the left
        for axis in axes[len(row) :]:
            axis.set_axis_off()
    figure.savefig(path, bbox_inches="tight", pad_inches=0.2)


def _ran(batch: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return name and numbers of the variants that ran, slowest first, because the first bar is the lowest.

    Variants of --against are not drawn: the chart answers which variant to run.
    """
    variants = ((name, variant) for name, variant in batch["variants"].items() if not name.startswith(FROM_ANOTHER))
    ran = [(name, variant) for name, variant in variants if variant["status"] == "ok"]
    return sorted(ran, key=lambda item: -item[1]["stream"]["median"])


class _Bar(NamedTuple):
    """A variant's time in microseconds, and its ratio to the time of FusedResNet, as in the table."""

    label: str
    time: float
    ratio: float | None
    ours: bool


def _bar(name: str, variant: dict[str, Any], metric: str) -> _Bar:
    ratio = variant[f"{metric}_ratio"]
    return _Bar(variant["label"], variant[metric]["median"], ratio and ratio["median"], name == "fused")


def _panel(axis: Axes, title: str, bars: list[_Bar]) -> None:
    name, scale = unit([bar.time for bar in bars])
    times = [bar.time / scale for bar in bars]
    axis.set_title(title, loc="left", color=FAINT, fontsize=10)
    axis.barh(range(len(bars)), times, height=0.66, color=[OURS if bar.ours else THEIRS for bar in bars])
    axis.set_yticks(range(len(bars)), [bar.label for bar in bars], color=INK, fontsize=11)
    for tick, bar in zip(axis.get_yticklabels(), bars, strict=True):
        tick.set_fontweight("bold" if bar.ours else "normal")
    for row, (bar, time) in enumerate(zip(bars, times, strict=True)):
        text = f"{number(time)} {name}" + (f"  ({number(bar.ratio)}x)" if bar.ratio else "")
        style: dict[str, Any] = {"color": INK, "fontsize": 11, "fontweight": "bold" if bar.ours else "normal"}
        axis.annotate(text, (time, row), (6, 0), textcoords="offset points", va="center", **style)
    axis.set_xlim(0, max(times) * 1.4)  # room for the longest bar's label
    axis.set_xticks([])
    axis.tick_params(length=0)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)
    axis.spines["left"].set_color(FAINT)
