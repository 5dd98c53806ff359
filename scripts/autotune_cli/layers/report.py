"""Prints and draws a layer record: the table, its summary, and the chart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autotune.core import AutotuneError, number
from autotune.ir import parse
from autotune_cli.layers import chart
from autotune_cli.layers.comparison import SIDES
from autotune_cli.layers.layer_sets import title
from autotune_cli.record import one_line

WIDTH = 110  # columns of the table if the output is no terminal
TOTALS = {name: ("ratios", name) for name in SIDES if name != "ours"} | {"cudnn_to_tuned": ("ratios_to_tuned", "cudnn")}
"""Entry of the summary -> ratios of a layer, and the side."""


def summary(layers: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, for each other side, the geometric mean and the extremes of the ratios over all layers that have them.

    Its entry "cudnn_to_tuned" is cuDNN's best plan over the tuner's choice, which may be a plan of cuDNN too. "faster"
    and "slower" count the layers where the whole interval of the ratio lies above or below 1.
    """
    result = {}
    for total, (kind, side) in TOTALS.items():
        ratios = [layer[kind][side] for layer in layers if side in layer.get(kind, {})]
        if ratios:
            medians = [ratio["median"] for ratio in ratios]
            result[total] = {
                "layers": len(ratios),
                "geometric_mean": math.exp(sum(map(math.log, medians)) / len(medians)),
                "worst": min(medians),
                "best": max(medians),
                "faster": sum(ratio["low"] > 1 for ratio in ratios),
                "slower": sum(ratio["high"] < 1 for ratio in ratios),
            }
    return result


def read(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        if not isinstance(record["layers"], list):
            raise TypeError("layers is no list")
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise AutotuneError(f"'{path}' is not a record of `autotune bench-layers`: {one_line(problem)}") from problem
    return record


def show(record: dict[str, Any]) -> None:
    """Print the table, its summary, and the reasons for missing times."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table(record["layers"], heading(record)))
    if totals := summary(record["layers"]):
        console.print(totals_table(totals))
    reasons: dict[str, list[str]] = {}
    for layer in record["layers"]:
        name = title(parse(layer["problem"]))
        if "error" in layer:
            reasons.setdefault(f"not measured: {layer['error']}", []).append(name)
        for side, reason in layer.get("missing", {}).items():
            reasons.setdefault(f"without {SIDES[side]}: {reason}", []).append(name)
    for reason, names in reasons.items():
        where = names[0] if len(names) == 1 else f"{len(names)} layers"
        console.print(f"[yellow]{escape(where)}[/] {escape(reason)}")


def heading(record: dict[str, Any]) -> str:
    version = record["cudnn"].get("cudnn")
    return f"{record['arguments']['layers']} layers on {record['machine']['device']}" + (
        f", cuDNN {version}" if version else ""
    )


def table(layers: Sequence[dict[str, Any]], caption: str) -> Table:
    """Return a row for each layer: times in us, cuDNN's best over ours with its interval, our share of the limit."""
    result = Table(
        title=caption, title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False
    )
    result.add_column("layer\nour kernel", overflow="fold")
    times = ("ours\nus", "cuDNN\nus", "first\nus", "CUTLASS\n2.x us", "torch\nus")
    for name in (*times, "cuDNN/ours\n95 %", "share of\nlimit"):
        result.add_column(name, justify="right", no_wrap=True)
    for layer in layers:
        sides, ratio = layer.get("sides", {}), layer.get("ratios", {}).get("cudnn")
        ours = sides.get("ours")
        name = escape(title(parse(layer["problem"]))) + (f"\n[dim]{escape(ours['label'])}" if ours else "")
        style = "" if not ratio else "green" if ratio["low"] > 1 else "red" if ratio["high"] < 1 else ""
        values = [time_text(sides.get(side)) for side in ("ours", "cudnn")]
        others = [sides.get(side) for side in ("first", "cutlass2", "torch")]
        values += [number(side["us"]["median"]) if side else "-" for side in others]
        values += [f"[{style}]{ratio_text(ratio)}[/]" if style else ratio_text(ratio)]
        result.add_row(name, *values, f"{ours['share']:.0%}" if ours else "-")
    return result


def totals_table(totals: dict[str, dict[str, Any]]) -> Table:
    """Return a row for each side that our kernels are compared with, and one for the tuner's choice."""
    result = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    result.add_column("times ours")
    for name in ("layers", "geometric mean", "worst", "best", "ours faster", "ours slower"):
        result.add_column(name, justify="right", no_wrap=True)
    for total, row in totals.items():
        ratios = [number(row[name]) for name in ("geometric_mean", "worst", "best")]
        name = SIDES.get(total, f"{SIDES['cudnn']} to {SIDES['tuned']}")
        result.add_row(name, str(row["layers"]), *ratios, str(row["faster"]), str(row["slower"]))
    return result


def time_text(side: dict[str, Any] | None) -> str:
    """Return the median and, in percent of it, half the distance from the 10th to the 90th percentile."""
    if side is None:
        return "-"
    us = side["us"]
    return f"{number(us['median'])} ±{50 * (us['high'] - us['low']) / us['median']:.0f}%"


def ratio_text(ratio: dict[str, Any] | None) -> str:
    return f"{number(ratio['median'])} ({number(ratio['low'])}-{number(ratio['high'])})" if ratio else "-"


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw the chart of the record, or print why there is none."""
    rows = []
    for layer in record["layers"]:
        ratios = layer.get("ratios", {})
        if "cudnn" in ratios:
            rows.append(
                {
                    "label": title(parse(layer["problem"])),
                    "ours": layer["sides"]["ours"]["us"]["median"],
                    "cudnn": layer["sides"]["cudnn"]["us"]["median"],
                    "ratio": ratios["cudnn"]["median"],
                    "low": ratios["cudnn"]["low"],
                    "high": ratios["cudnn"]["high"],
                    "first": ratios.get("first", {}).get("median"),
                    "cutlass2": ratios.get("cutlass2", {}).get("median"),
                    "torch": ratios.get("torch", {}).get("median"),
                }
            )
    total = summary(record["layers"]).get("cudnn")
    subtitle = heading(record)
    if total:
        mean = number(total["geometric_mean"])
        subtitle += f"; cuDNN's best plan takes {mean} times our time (geometric mean of {total['layers']} layers)"
    try:
        chart.draw("Our kernels against the best of all cuDNN plans", subtitle, rows, path)
        Console().print(f"wrote {path}", highlight=False)
    except (ValueError, ImportError) as problem:
        reason = "install matplotlib" if isinstance(problem, ImportError) else problem
        Console().print(f"no chart: {reason}", highlight=False)
