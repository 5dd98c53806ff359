"""Draws the chart of `bench_networks.py`: how many times faster than torch.compile each network runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from speedups import Row

from autotune.core import number
from autotune_cli.chart import FAINT, INK, OURS

LOST = "#d98a3d"  # slower than torch.compile
ROW_INCHES, HEAD_INCHES, GAP = 0.24, 1.3, 0.6


def draw(found: Sequence[Row], device: str, path: Path) -> None:
    """Draw a bar for each network and batch size, with a mark for the network with nothing tuned.

    Args:
        found: Networks with their speedups over the faster mode of torch.compile.
        device: Name of the device, for the title.
        path: The image file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    drawn = [row for row in reversed(found) if not math.isnan(row.speedup)]  # the first bar is the lowest
    places: list[float] = []
    for before, row in zip([None, *drawn], drawn, strict=False):
        gap = 0 if before is None else 1 if before.network == row.network else 1 + GAP
        places.append((places[-1] if places else 0) + gap)
    size = (11, HEAD_INCHES + ROW_INCHES * (places[-1] + 1))
    figure = Figure(figsize=size, dpi=160, facecolor="white", layout=ConstrainedLayoutEngine(h_pad=0.1))
    axis = figure.subplots()
    figure.suptitle(f"Times faster than torch.compile, {device}", x=0.012, ha="left", color=INK, fontsize=15,
                    fontweight="bold")  # fmt: skip
    modes = list(dict.fromkeys(mode for row in drawn for mode in row.peers))
    of = f"the faster of {' and '.join(modes)}" if len(modes) > 1 else f"torch.compile, {modes[0]},"
    axis.set_title(
        f"time of {of} over that of FusedResNet, back-to-back calls",
        loc="left", color=FAINT, fontsize=10, pad=10,
    )  # fmt: skip
    values = [row.speedup for row in drawn]
    colors = [OURS if value >= 1 else LOST for value in values]
    axis.barh(places, values, height=0.72, color=colors, zorder=2)
    untuned = [(row.untuned, place) for row, place in zip(drawn, places, strict=True) if not math.isnan(row.untuned)]
    if untuned:
        xs, ys = zip(*untuned, strict=True)
        axis.scatter(xs, ys, s=22, facecolor="white", edgecolor=INK, zorder=4, label="with nothing tuned")
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, fontsize=9, labelcolor=INK)
    axis.axvline(1, color=INK, linewidth=1, zorder=3)
    axis.set_yticks(places, [f"{row.network}   {row.batch}" for row in drawn], color=INK, fontsize=9)
    ends = [max(row.speedup, 0.0 if math.isnan(row.untuned) else row.untuned) for row in drawn]  # of bar and mark
    for row, place, end in zip(drawn, places, ends, strict=True):
        text = f"{row.speedup:.2f}x   {number(row.us)} us"
        axis.annotate(text, (end, place), (6, 0), textcoords="offset points", va="center", color=INK, fontsize=9)
    axis.set_xlim(0, max(ends) * 1.22)  # room for the longest bar's text
    axis.set_ylim(-0.7, places[-1] + 0.7)
    axis.grid(axis="x", color="#e8ebf0", zorder=0)
    axis.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        axis.spines[side].set_visible(False)
    figure.savefig(path, bbox_inches="tight", pad_inches=0.2)
