"""Draws the algorithms of a record, time against workspace or energy, with their Pareto front."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core import AutotuneError
from autotune.cudnn_algorithms import DIRECTIONS, ORDERS, Algorithm, pareto
from autotune.ir import parse
from autotune_cli.algorithms.report import algorithms
from autotune_cli.chart import FAINT, INK, OURS, THEIRS

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # an optional package: only drawing needs it

CLASSIC = "#d98a3d"
TICKS = (0, 1 / 16, 1, 16, 256, 4096)  # MiB
PANEL_INCHES = (4.6, 4.0)
AXES = {"workspace": (2**20, "workspace, MiB"), "energy": (1e3, "energy of one call, mJ")}
"""Horizontal axis -> units of the field in one unit of the axis, and the axis title."""


def check(path: Path) -> None:
    """Raise AutotuneError if matplotlib is missing or cannot write this kind of file."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise AutotuneError("drawing needs matplotlib: pip install '.[bench]'") from error
    if path.suffix.removeprefix(".") not in (known := FigureCanvasBase.get_supported_filetypes()):
        raise AutotuneError(f"'{path}' is no image file: end it in one of {', '.join(sorted(known))}")


def draw(record: dict[str, Any], against: str, path: Path) -> None:
    """Draw a row of panels for each layer, one for each pass; raises AutotuneError if there is nothing to draw."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    field = ORDERS[against]
    rows = []
    for layer in record["layers"]:
        timed = [one for one in algorithms(layer) if one.us is not None and getattr(one, field) is not None]
        if timed:
            named = layer["name"] != layer["problem"]
            rows.append((layer["name"] if named else parse(layer["problem"]).short_name, timed))
    if not rows:
        raise AutotuneError(f"the record has no algorithm with both time and {against}: measure with --energy")
    seen = {one.direction for _, timed in rows for one in timed}
    directions = [direction for direction in DIRECTIONS if direction in seen]
    width, height = PANEL_INCHES
    figure = Figure(
        figsize=(max(width * len(directions), 2 * width), 0.5 + height * len(rows)),
        dpi=130,
        facecolor="white",
        layout=ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.1),
    )
    figure.suptitle(
        f"cuDNN's algorithms on {record['machine']['device']}: lower and further left is better",
        x=0.012, ha="left", color=INK, fontsize=14, fontweight="bold",
    )  # fmt: skip
    grid = figure.subplots(len(rows), len(directions), squeeze=False)
    for axes, (name, timed) in zip(grid, rows, strict=True):
        for axis, direction in zip(axes, directions, strict=True):
            _panel(axis, [one for one in timed if one.direction == direction], against)
            axis.set_title(direction, loc="left", color=INK, fontsize=11)
        axes[0].set_title(f"{name}\n{directions[0]}", loc="left", color=INK, fontsize=11)
    figure.savefig(path, bbox_inches="tight", pad_inches=0.2)


def _panel(axis: Axes, points: list[Algorithm], against: str) -> None:
    scale, title = AXES[against]

    def place(algorithm: Algorithm) -> tuple[float, float]:
        return getattr(algorithm, ORDERS[against]) / scale, algorithm.us or 0.0

    for kind, color, marker in (("engine", THEIRS, "o"), ("classic", CLASSIC, "s")):
        if mine := [place(point) for point in points if point.kind == kind]:
            xs, ys = zip(*mine, strict=True)
            axis.scatter(xs, ys, color=color, marker=marker, s=24, label=kind, zorder=2)
    if front := pareto(points, against):
        xs, ys = zip(*sorted(map(place, front)), strict=True)
        axis.step(xs, ys, where="post", color=OURS, linewidth=1.4, marker="o", zorder=3, label="Pareto front")
        for point in front:
            text = point.key if point.kind == "classic" else point.key.partition("_")[0]
            axis.annotate(text, place(point), (5, 4), textcoords="offset points", fontsize=8, color=INK)
    axis.set_yscale("log")
    if against == "workspace":
        most = max((place(point)[0] for point in points), default=1)
        axis.set_xscale("symlog", linthresh=TICKS[1])
        axis.set_xticks([tick for tick in TICKS if tick <= 4 * most], minor=False)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlim(-0.02, 2 * max(most, TICKS[1]))
        axis.minorticks_off()
    axis.set_xlabel(title, color=FAINT, fontsize=9)
    axis.set_ylabel("time of one call, us", color=FAINT, fontsize=9)
    axis.tick_params(colors=FAINT, labelsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=8, labelcolor=INK)
