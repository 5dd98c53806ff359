"""Tables that several scripts print."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from autotune.report import Line, brief


def winners(lines: Iterable[Line], title: str) -> Table:
    """Layer and problem, winner, time, speed-up over the library and share of the limit; a last row sums the times."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("layer\nproblem", no_wrap=True)
    table.add_column("winner\nconfig", overflow="fold")
    for name in ("time\nus", "times\ntorch", "share of\nlimit"):
        table.add_column(name, justify="right", no_wrap=True)
    total = library = 0.0
    for line in lines:
        time = f"{line.time_us:.1f}" if line.time_us else "-"
        speed_up = f"{line.speed_up:.2f}" if line.speed_up else "-"
        share = f"{line.share:.0%}" if line.share is not None else "-"
        family, _, config = line.winner.partition(" ")
        table.add_row(f"{line.layer}\n[dim]{brief(line.problem)}", f"{family}\n[dim]{config}", time, speed_up, share)
        total += line.time_us or 0.0
        library += (line.time_us or 0.0) * (line.speed_up or 1.0)
    if total:
        table.add_row("sum", "", f"{total:.1f}", f"{library / total:.2f}", "", style="bold")
    return table
