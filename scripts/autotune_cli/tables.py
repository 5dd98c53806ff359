"""Tables that several subcommands print."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autotune.core.errors import Fault
from autotune.ir import BYTE_FORMATS, Problem
from autotune.tuner import (
    OBJECTIVES,
    RECORD,
    SLOWED,
    WAIT,
    Failure,
    LayerWinner,
    PhaseTime,
    TimeBreakdown,
    pareto_candidates,
    sum_us,
)
from tuning_db import Store
from tuning_db.schema import Device

_FAILURES = 8
_SHORT = 20
"""Most lines of a short table, so that it fits on a screen with what is printed above it."""


def winners(
    lines: Sequence[LayerWinner],
    title: str,
    first: str,
    *,
    is_network: bool = False,
    alternatives: Sequence[LayerWinner] = (),
    is_short: bool = False,
) -> Table:
    """Return a table of each line's problem, time, torch's time and share of the limit, with the winner below it.

    Args:
        lines: The problems with their winners.
        title: Of the table.
        first: Heading of the lines' names.
        is_network: Whether the lines are the layers of a network, which also get a sum.
        alternatives: Layers that can replace some of these.
        is_short: Leave out the winners, and of many lines all but the slowest.
    """
    table = Table(title=title, title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(f"{first}  problem" if is_short else f"{first}  problem\n  winner", overflow="fold")
    for name in ("time\nus", "torch\nus", "\ntimes", "share of\nlimit"):
        table.add_column(name, justify="right", no_wrap=True)
    slowest = sorted(lines, key=lambda line: -(line.time_us or math.inf))[:_SHORT] if is_short else lines
    for line in lines:
        if line in slowest:
            table.add_row(*_winner(line, is_short))
    if others := [line for line in lines if line not in slowest]:
        table.add_row(f"{len(others)} faster ones", *_sums(others), "", style="dim")
    if is_network and any(line.time_us for line in lines):
        table.add_row("sum", *_sums(lines), "", style="bold")
    if any(line.is_throttled for line in (*lines, *alternatives)):
        table.caption, table.caption_justify = f"timed {SLOWED}", "left"
    if alternatives:
        table.add_row("alternatives to one or more layers", style="bold")
        for line in alternatives:
            table.add_row(*_winner(line, is_short))
    return table


def _winner(line: LayerWinner, is_short: bool) -> tuple[RenderableType, ...]:
    torch = _torch_us(line)
    name = Text.assemble((line.layer, "bold"), "  ", line.problem.short_name)
    winner = Padding(Text(line.winner, style="dim"), (0, 0, 0, 2))
    return (
        name if is_short else Group(name, winner),
        f"{line.time_us:.1f}" if line.time_us else "-",
        *((f"{torch:.1f}", f"{line.speed_up:.2f}") if torch else ("-", "-")),
        f"{line.share:.0%}" if line.share is not None else "-",
    )


def total_us(lines: Iterable[LayerWinner]) -> tuple[float | None, float | None]:
    """Return the sums of the times of some lines and of torch's; None for a sum of which a line has no time."""
    lines = list(lines)
    own, torchs = [line.time_us for line in lines], [_torch_us(line) for line in lines]
    return sum_us(own), sum_us(torchs) if all(own) else None


def _sums(lines: Iterable[LayerWinner]) -> tuple[str, str, str]:
    own, torch = total_us(lines)
    if own is None or torch is None:
        return f"{own:.1f}" if own else "-", "-", "-"
    return f"{own:.1f}", f"{torch:.1f}", f"{torch / own:.2f}"


def _torch_us(line: LayerWinner) -> float | None:
    """Return the time of torch's operators; None for a problem in bytes, which torch only emulates in float32."""
    known = line.time_us and line.speed_up and line.problem.dtype not in BYTE_FORMATS
    return line.time_us * line.speed_up if known and line.time_us and line.speed_up else None


def spent(breakdown: TimeBreakdown) -> Table:
    """Return where the time of a run went: the seconds of the device and, below them, the core-seconds."""
    table = Table(title="where the time went", title_justify="left", box=None, header_style="bold")
    for name in ("step", "s", "of the run", "ms a trial"):
        table.add_column(name, justify="left" if name == "step" else "right")
    total, trials = breakdown.total, breakdown.trials

    def row(name: str, seconds: float, share: bool = True, style: str = "") -> None:
        part = f"{seconds / total:.1%}" if share else ""
        table.add_row(name, f"{seconds:.1f}", part, f"{1e3 * seconds / trials:.2f}", style=style)

    for step in ("verify", "time", WAIT):
        row(step, breakdown.seconds[step])
    row("overhead: the device is idle", breakdown.overhead)
    row(f"run, {trials} trials", total, style="bold")
    for step in ("compile", "search", "emit", "load", RECORD):
        row(f"{step}, in core-seconds", breakdown.seconds[step], share=False, style="dim")
    return table


def phases(times: Sequence[PhaseTime]) -> Table:
    """Return the seconds of each phase, its share of the run so far, and the seconds that it was allowed to take."""
    table = Table(title="phases", title_justify="left", box=None, header_style="bold")
    for name in ("phase", "s", "of the run", "of at most, s"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    total = sum(time.spent for time in times)
    for time in times:
        granted = "" if math.isinf(time.granted) else f"{time.granted:.1f}"
        table.add_row(time.name, f"{time.spent:.1f}", f"{time.spent / total:.1%}", granted)
    table.add_row("run", f"{total:.1f}", style="bold")
    return table


def survived(found: Mapping[Fault, int]) -> Table:
    """Return the faults of a run, how often each happened, and what the run did."""
    table = Table(title="faults that the run survived", title_justify="left", box=None, header_style="bold")
    table.add_column("fault")
    table.add_column("times", justify="right")
    table.add_column("what the run does")
    for fault, times in found.items():
        table.add_row(fault.event, str(times), fault.consequence)
    return table


def tradeoffs(store: Store, device: Device, named: Sequence[tuple[str, Problem]], objectives: Sequence[str]) -> Table:
    """Return the Pareto front of each problem over the objectives."""
    table = Table(title=f"trade-offs: {', '.join(objectives)}", title_justify="left", box=None, header_style="bold")
    table.add_column("layer", no_wrap=True)
    table.add_column("candidate", overflow="fold")
    for name in objectives:
        table.add_column(f"{name}\n{OBJECTIVES[name].unit}", justify="right", no_wrap=True)
    for name, problem in named:
        for i, (words, values) in enumerate(pareto_candidates(store, device, problem, objectives)):
            table.add_row("" if i else name, words, *(f"{v:.4g}" for v in values))
    return table


def failure_counts(found: list[Failure]) -> str:
    """Return how many candidates failed, and how many of each kind."""
    kinds = Counter[str]()
    for one in found:
        kinds[one.status] += one.count
    counts = ", ".join(f"{count} {status}" for status, count in kinds.most_common())
    return f"{kinds.total()} candidates failed ({counts})"


def failures(found: list[Failure]) -> list[str]:
    """Return lines on the failed candidates and their errors, for the first few kinds of failure."""
    said = []
    for failure in found[:_FAILURES]:
        others = f" [dim](and {failure.count - 1} more of its family)[/]" if failure.count > 1 else ""
        said.append(f"[bold]{failure.status}[/] {escape(failure.example)}{others}")
        said += [f"    {escape(line)}" for line in failure.message.splitlines()[:6]]
    if len(found) > _FAILURES:
        said.append(f"and {len(found) - _FAILURES} other kinds of failure: autotune db list shows all")
    return said
