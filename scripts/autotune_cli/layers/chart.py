"""Draws the chart of a layer record: cuDNN's time over our kernel's time, a bar for each layer, logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.core import number
from autotune_cli.chart import FAINT, INK, OURS

LOST = "#d98a3d"  # bars of layers where cuDNN is faster
ROW_INCHES, HEAD_INCHES = 0.33, 1.5
TICKS = (0.25, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
OTHERS = (("first", "o", "cuDNN's first choice"), ("cutlass2", "s", "CUTLASS 2.x"), ("torch", "d", "torch's operator"))
"""Sides drawn as points: name in a row, marker, text of the legend."""
LABEL = 0.055  # width of a tick's label as a share of the axis


def draw(title: str, subtitle: str, rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a bar for each row.

    Args:
        title: Of the chart.
        subtitle: Below the title.
        rows: Each with label; ours, cudnn (microseconds); ratio, low, high (cuDNN's best over ours, and its interval);
            first, cutlass2, torch (ratios of the other sides, or None).
        path: The image file.

    Raises:
        ValueError: There are no rows.
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if not rows:
        raise ValueError("no layer has both our time and cuDNN's")
    rows = sorted(rows, key=lambda row: row["ratio"])  # the first is the lowest
    size = (11, HEAD_INCHES + ROW_INCHES * len(rows))
    figure = Figure(figsize=size, dpi=160, facecolor="white", layout=ConstrainedLayoutEngine(h_pad=0.1))
    axis = figure.subplots()
    figure.suptitle(title, x=0.012, ha="left", color=INK, fontsize=15, fontweight="bold")
    axis.set_title(subtitle, loc="left", color=FAINT, fontsize=10, pad=10)
    ratios = [row["ratio"] for row in rows]
    places = range(len(rows))
    colors = [OURS if ratio >= 1 else LOST for ratio in ratios]
    left = [min(1, ratio) for ratio in ratios]
    axis.barh(places, [abs(ratio - 1) for ratio in ratios], left=left, height=0.62, color=colors, alpha=0.85, zorder=2)
    axis.hlines(places, [row["low"] for row in rows], [row["high"] for row in rows], color=INK, linewidth=1.4, zorder=3)
    seen = [*ratios, *(row["high"] for row in rows), 1.0]
    for name, marker, text in OTHERS:
        points = [(row[name], place) for place, row in zip(places, rows, strict=True) if row[name]]
        if points:
            xs, ys = zip(*points, strict=True)
            axis.scatter(xs, ys, s=26, marker=marker, facecolor="white", edgecolor=FAINT, zorder=4, label=text)
            seen += xs
    axis.axvline(1, color=INK, linewidth=1)
    axis.set_xscale("log")
    low, high = min(*seen, 0.95) / 1.06, max(*seen, 1.05) * 1.06
    ticks = _apart([tick for tick in TICKS if low <= tick <= high], high / low)
    axis.set_xticks(ticks, [f"{tick:g}x" for tick in ticks], color=FAINT, fontsize=9)
    axis.minorticks_off()
    axis.set_xlim(low, high)
    axis.set_ylim(-0.7, len(rows) - 0.3)
    axis.set_yticks(places, [row["label"] for row in rows], color=INK, fontsize=10)
    times = axis.secondary_yaxis("right")
    texts = [f"{number(row['ratio'])}x    {number(row['ours'])} : {number(row['cudnn'])} us" for row in rows]
    times.set_yticks(places, texts, color=INK, fontsize=10)
    axis.grid(axis="x", color="#e8ebf0", zorder=0)
    axis.tick_params(length=0)
    times.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        axis.spines[side].set_visible(False)
    times.spines["right"].set_visible(False)
    axis.set_xlabel(
        "slower than cuDNN    ←    times our kernel's time    →    faster than cuDNN", color=FAINT, fontsize=9
    )
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="lower right", frameon=False, fontsize=9, labelcolor=INK)
    figure.savefig(path, bbox_inches="tight", pad_inches=0.2)


def _apart(ticks: Sequence[float], span: float) -> list[float]:
    """Return the ticks whose labels do not overlap on an axis from x to x * span; ticks near 1 are preferred."""
    kept: list[float] = []
    for tick in sorted(ticks, key=lambda tick: abs(math.log(tick))):
        if all(abs(math.log(tick / other)) > LABEL * math.log(span) for other in kept):
            kept.append(tick)
    return sorted(kept)
