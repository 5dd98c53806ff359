"""The bar chart of a benchmark record: stream time and latency of each batch size side by side.

Of many batch sizes it has the stream times alone, two batch sizes in a row.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from parts.peers import FROM_ANOTHER

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # an optional package: only drawing needs it

OURS, THEIRS, INK, FAINT = "#2f6fde", "#c9d0da", "#1c2430", "#6b7686"
BAR_INCHES, PANEL_INCHES, HEAD_INCHES = 0.38, 0.55, 0.45
METRICS = {"stream": "time of back-to-back calls", "latency": "latency of one call"}
FEW = 2
"""Batch sizes of which both times are drawn."""


def unit(microseconds: list[float]) -> tuple[str, float]:
    """The unit in which these times read well, and how many microseconds it is."""
    return ("ms", 1e3) if max(microseconds, default=0) >= 1e5 else ("us", 1)


def number(value: float) -> str:
    """About three significant digits, never an exponent."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw the median times of a record of bench.py.

    Raises ValueError if it has none, ImportError without matplotlib.
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
    title = f"{arguments['model']}, {arguments['dtype']}, {machine['device']}"
    figure.suptitle(title, x=0.012, ha="left", color=INK, fontsize=14, fontweight="bold")
    grid = figure.subplots(len(rows), 2, squeeze=False, height_ratios=heights)
    for axes, row in zip(grid, rows, strict=True):
        for axis, (size, bars, metric) in zip(axes, row, strict=False):
            times = [(key, variant["label"], variant[metric]) for key, variant in bars]
            _panel(axis, f"batch {size}: {METRICS[metric]}", times)
        names = [[name for name, _ in bars] for _, bars, _ in row]
        if len(row) == 2 and names[0] == names[1]:
            axes[1].set_yticks([])  # those of its neighbour
        for axis in axes[len(row) :]:
            axis.set_axis_off()
    figure.savefig(path, bbox_inches="tight", pad_inches=0.2)


def _ran(batch: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Name and numbers of the variants that ran, slowest first: the first bar is the lowest.

    Plans from other databases stay in the record: who looks at the chart asks what to run.
    """
    variants = ((name, variant) for name, variant in batch["variants"].items() if not name.startswith(FROM_ANOTHER))
    ran = [(name, variant) for name, variant in variants if variant["status"] == "ok"]
    return sorted(ran, key=lambda item: -item[1]["stream"]["median"])


def _panel(axis: Axes, title: str, bars: list[tuple[str, str, dict[str, Any]]]) -> None:
    """One bar for each (name, label, statistics of a time)."""
    name, scale = unit([time["median"] for *_, time in bars])
    times = [time["median"] / scale for *_, time in bars]
    axis.set_title(title, loc="left", color=FAINT, fontsize=10)
    axis.barh(range(len(bars)), times, height=0.66, color=[OURS if key == "fused" else THEIRS for key, *_ in bars])
    axis.set_yticks(range(len(bars)), [label for _, label, _ in bars], color=INK, fontsize=11)
    for tick, (key, *_) in zip(axis.get_yticklabels(), bars, strict=True):
        tick.set_fontweight("bold" if key == "fused" else "normal")
    ours = next((time for (key, *_), time in zip(bars, times, strict=True) if key == "fused"), None)
    for row, ((key, *_), value) in enumerate(zip(bars, times, strict=True)):
        text = f"{number(value)} {name}" + (f"  ({number(value / ours)}x)" if ours else "")
        style: dict[str, Any] = {"color": INK, "fontsize": 11, "fontweight": "bold" if key == "fused" else "normal"}
        axis.annotate(text, (value, row), (6, 0), textcoords="offset points", va="center", **style)
    axis.set_xlim(0, max(times) * 1.4)  # room for the longest bar's label
    axis.set_xticks([])
    axis.tick_params(length=0)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)
    axis.spines["left"].set_color(FAINT)
