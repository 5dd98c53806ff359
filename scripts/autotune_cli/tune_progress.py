"""Shows a tuning run: its stage, the kernels compiled, the problems tuned, and the best time of each so far."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from autotune.core import Deadline
from autotune.ir import Problem
from autotune.tuner import Progress as Events


class LiveProgress(Events):
    """A live display on a terminal, and one line a stage elsewhere. Use it as a context manager.

    Args:
        console: Where it is printed.
        layers: The problems with the names of their layers.
        deadline: The deadline of the run.
    """

    def __init__(self, console: Console, layers: Sequence[tuple[str, Problem]], deadline: Deadline) -> None:
        self._console, self._deadline = console, deadline
        self._stages: list[tuple[str, float]] = []
        self._problems = dict.fromkeys(str(problem) for _, problem in layers)
        self._names = {str(problem): name for name, problem in reversed(layers)}
        self._short_names = {str(problem): problem.short_name for _, problem in layers}
        self._tried = dict.fromkeys(self._problems, 0)
        self._best: dict[str, float | None] = dict.fromkeys(self._problems)
        self._bars = Progress(
            TextColumn("{task.description:<32}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._kernels = self._bars.add_task("kernels compiled", total=0)
        self._layers = self._bars.add_task("problems tuned", total=len(self._problems))
        self._done: set[str] = set()
        self._failed = 0
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def stage(self, text: str) -> None:
        """Print the stage that begins, and the time that is left."""
        self._stages.append((text, time.monotonic()))
        self.note(text)

    def note(self, text: str) -> None:
        """Print a message and the time that is left."""
        self._console.print(f"[dim]{self._deadline.elapsed:5.0f} s, {self._left()}[/]  {text}")

    def parts(self) -> str:
        """Return the stages with their durations up to now."""
        ends = [*(began for _, began in self._stages[1:]), time.monotonic()]
        return ", ".join(f"{text} {end - began:.0f} s" for (text, began), end in zip(self._stages, ends, strict=True))

    def compiling(self, kernels: int) -> None:
        """Add kernels to the total of the compile bar."""
        task = self._bars.tasks[self._kernels]
        self._bars.update(self._kernels, total=(task.total or 0) + kernels)

    def compiled(self, kernels: int, failed: int) -> None:
        """Advance the compile bar."""
        self._failed += failed
        description = f"kernels compiled, {self._failed} failed" if self._failed else "kernels compiled"
        self._bars.update(self._kernels, advance=kernels, description=description)

    def measured(self, problem: str, candidates: int, best_us: float | None) -> None:
        """Update a problem's line."""
        self._tried[problem] += candidates
        self._best[problem] = best_us

    def done(self, problem: str) -> None:
        """Advance the bar of problems."""
        self._done.add(problem)
        self._bars.update(self._layers, completed=len(self._done))

    def _left(self) -> str:
        return "no limit" if math.isinf(self._deadline.end) else f"{self._deadline.left:.0f} s left"

    def _draw(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("layer", "problem"):
            table.add_column(name, no_wrap=True)
        for name in ("tried", "best us"):
            table.add_column(name, justify="right")
        for problem in self._problems:
            best = self._best[problem]
            shown = f"{best:.1f}" if best else "-"
            table.add_row(self._names[problem], self._short_names[problem], str(self._tried[problem]), shown)
        stage = self._stages[-1][0] if self._stages else ""
        return Group(f"{stage}, {self._left()}", self._bars, table)
