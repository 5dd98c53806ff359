"""Shows a tuning run: its stage, the kernels compiled, the best times so far, and how they compare with torch's."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from autotune.core import Deadline
from autotune.ir import Problem
from autotune.tuner import Progress as Events

_OTHER_LINES = 6
"""Lines of a display beside those of the problems: stage, bars, heading, and two that stay free."""


class LiveProgress(Events):
    """A live display on a terminal, and one line a stage elsewhere. Use it as a context manager.

    Args:
        console: Where it is printed.
        layers: The problems with the names of their layers.
        deadline: The deadline of the run.
        added: The problems whose times are added up: those of a network's layers, without alternatives to these.
    """

    def __init__(
        self,
        console: Console,
        layers: Sequence[tuple[str, Problem]],
        deadline: Deadline,
        added: Sequence[Problem] = (),
    ) -> None:
        self._console, self._deadline = console, deadline
        self._counts = Counter(map(str, added))
        self._stages: list[tuple[str, float]] = []
        self._problems = dict.fromkeys(str(problem) for _, problem in layers)
        self._names = {str(problem): name for name, problem in reversed(layers)}
        self._short_names = {str(problem): problem.short_name for _, problem in layers}
        self._tried = dict.fromkeys(self._problems, 0)
        self._best: dict[str, float | None] = dict.fromkeys(self._problems)
        self._torch: dict[str, float] = {}
        self._bars = Progress(
            TextColumn("{task.description:<32}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._kernels = self._bars.add_task("kernels compiled", total=0)
        self._layers = self._bars.add_task("problems tuned", total=len(self._problems))
        self._done: set[str] = set()
        self._failed = 0
        self._live = Live(console=console, get_renderable=self.view, refresh_per_second=4, transient=True)

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
        self._console.print(f"[dim]{self._deadline.elapsed:5.0f} s, {self._left()}[/]  {escape(text)}")

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

    def operator_timed(self, problem: str, us: float) -> None:
        """Keep the best time of torch's operators."""
        self._torch[problem] = min(us, self._torch.get(problem, us))

    def done(self, problem: str) -> None:
        """Advance the bar of problems."""
        self._done.add(problem)
        self._bars.update(self._layers, completed=len(self._done))

    def _left(self) -> str:
        return "no limit" if math.isinf(self._deadline.end) else f"{self._deadline.left:.0f} s left"

    def view(self) -> Group:
        """Return the display: of many problems it shows the slowest ones, as many as the terminal has lines for."""
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("layer  problem", no_wrap=True, overflow="ellipsis", max_width=self._console.width - 24)
        for name in ("tried", "best us"):
            table.add_column(name, justify="right", no_wrap=True, min_width=8)
        most = max(1, self._console.height - _OTHER_LINES)
        shown = set(sorted(self._problems, key=lambda problem: -(self._best[problem] or 0.0))[:most])
        for problem in self._problems:
            if problem in shown:
                best = self._best[problem]
                layer = Text.assemble((self._names[problem], "bold"), "  ", self._short_names[problem])
                table.add_row(layer, str(self._tried[problem]), f"{best:.1f}" if best else "-")
        stage = self._stages[-1][0] if self._stages else ""
        return Group(f"{stage}, {self._left()}{self._so_far()}", self._bars, table)

    def _so_far(self) -> str:
        """Return the sum of the layers' best times and how much faster than torch's operators that is, once known."""
        if not self._counts or not all(self._best.get(problem) for problem in self._counts):
            return ""
        total = sum(count * (self._best[problem] or 0) for problem, count in self._counts.items())
        torch = [count * self._torch[problem] for problem, count in self._counts.items() if problem in self._torch]
        ratio = f", {sum(torch) / total:.2f}x faster than torch's operators" if len(torch) == len(self._counts) else ""
        return f"; all layers {total:.1f} us{ratio}"
