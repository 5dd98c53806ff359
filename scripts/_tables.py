"""Tables that several scripts print."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from autotune.report import Line, brief


def winners(lines: Iterable[Line], title: str) -> Table:
    """Layer, problem, winner, time, speed-up over the library and share of the limit; a last row sums the times."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("layer", no_wrap=True)
    table.add_column("problem", no_wrap=True)
    table.add_column("winner", overflow="fold")
    for name in ("us", "x torch", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    total = library = 0.0
    for line in lines:
        time = f"{line.time_us:.1f}" if line.time_us else "-"
        speed_up = f"{line.speed_up:.2f}" if line.speed_up else "-"
        share = f"{line.share:.0%}" if line.share is not None else "-"
        table.add_row(line.layer, brief(line.problem), line.winner, time, speed_up, share)
        total += line.time_us or 0.0
        library += (line.time_us or 0.0) * (line.speed_up or 1.0)
    if total:
        table.add_row("sum", "", "", f"{total:.1f}", f"{library / total:.2f}", "", style="bold")
    return table
