"""Prints a record of algorithms: a table for each layer and pass."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autotune.core import AutotuneError, format_bytes, number
from autotune.cudnn_algorithms import DIRECTIONS, ORDERS, Algorithm, ordered
from autotune.ir import parse
from autotune_cli.record import one_line

WIDTH = 100  # columns of the tables if the output is no terminal


def read(path: Path) -> dict[str, Any]:
    """Read a record of `autotune algorithms`; raises AutotuneError if it is none."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        for layer in record["layers"]:
            algorithms(layer), layer["name"], parse(layer["problem"]), layer["missing"]
        record["machine"]["device"]
    except (OSError, LookupError, TypeError, ValueError) as problem:
        raise AutotuneError(f"'{path}' is not a record of `autotune algorithms`: {one_line(problem)}") from problem
    return record


def algorithms(layer: dict[str, Any]) -> list[Algorithm]:
    """Return the algorithms of a layer's entry."""
    return [Algorithm(**values) for values in layer["algorithms"]]


def show(record: dict[str, Any], order: str, workspace_limit: int | None, deterministic: bool, top: int | None) -> None:
    """Print the tables and the reasons for missing algorithms."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    every = [algorithm for layer in record["layers"] for algorithm in algorithms(layer)]
    if all(getattr(algorithm, ORDERS[order]) is None for algorithm in every):
        console.print(f"[yellow]{order} was not measured: the algorithms are in the order of their times[/]")
    for layer in record["layers"]:
        console.print(f"[bold]{escape(layer['name'])}[/]")
        if layer["name"] != layer["problem"]:
            console.print(f"[dim]{layer['problem']}[/]")
        for direction in DIRECTIONS:
            mine = [algorithm for algorithm in algorithms(layer) if algorithm.direction == direction]
            if mine:
                _show_pass(console, mine, order, workspace_limit, deterministic, top)
        for reason in layer["missing"]:
            console.print(f"[yellow]{escape(reason)}[/]")
        console.print()


def _show_pass(
    console: Console, mine: list[Algorithm], order: str, limit: int | None, deterministic: bool, top: int | None
) -> None:
    usable = ordered([algorithm for algorithm in mine if algorithm.usable], order)
    fitting = [
        algorithm
        for algorithm in usable
        if (limit is None or algorithm.workspace_bytes <= limit) and (algorithm.deterministic or not deterministic)
    ]
    console.print(_table(mine[0].direction, fitting[:top]))
    left = len(fitting) - len(fitting[:top])
    counts = {"more": left, "do not meet the demands": len(usable) - len(fitting)}
    for what, count in counts.items():
        if count:
            console.print(f"  [dim]and {count} {'that ' if ' ' in what else ''}{what}[/]")
    reasons: dict[str, list[Algorithm]] = {}
    for algorithm in mine:
        if not algorithm.usable:
            reasons.setdefault(f"{algorithm.status}: {algorithm.reason}", []).append(algorithm)
    for reason, refused in reasons.items():
        kinds = Counter(algorithm.kind for algorithm in refused)
        names = [str(algorithm) for algorithm in refused if algorithm.kind == "classic"]
        names += [f"{kinds['engine']} engine{'s' * (kinds['engine'] > 1)}"] if kinds["engine"] else []
        console.print(f"  [dim]{escape(', '.join(names))}: {escape(reason)}[/]")


def _table(title: str, rows: list[Algorithm]) -> Table:
    energy = any(row.energy_uj is not None for row in rows)
    table = Table(title=title, title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("algorithm", overflow="fold")
    for name in ("us", *(("uJ",) if energy else ()), "workspace"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("same\nbits", justify="right", no_wrap=True)
    table.add_column("arithmetic", overflow="fold")
    for row in rows:
        table.add_row(
            escape(str(row)),
            "-" if row.us is None else number(row.us),
            *(["-" if row.energy_uj is None else number(row.energy_uj)] if energy else []),
            format_bytes(row.workspace_bytes),
            {True: "yes", False: "no", None: "?"}[row.deterministic],
            row.math.replace("_", " "),
        )
    return table
