"""Events of a tuning run: the base class ignores them, others write them as lines or into a trace."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TextIO

from autotune.core import timeline

LINE_SECONDS = 10.0
"""Time between two lines of one stage where lines cannot be rewritten."""
REWRITE_SECONDS = 0.25
"""Time between two changes of a line that can."""
_MAX_CHARACTERS = 150  # of a problem in a counter's name; the text of a whole network lists all of its operators


class Progress:
    """Receives events; override the methods of those to show. Times are in microseconds."""

    def stage(self, text: str) -> None:
        """Show that a new stage begins."""

    def note(self, text: str) -> None:
        """Show a message within a stage."""

    def total(self, problems: int) -> None:
        """Show the number of problems to tune."""

    def compiling(self, kernels: int) -> None:
        """Show that the compilation of some more kernels begins."""

    def compiled(self, kernels: int, failed: int) -> None:
        """Show that the compilation of some kernels ended, of which `failed` failed."""

    def measured(self, problem: str, candidates: int, best_us: float | None) -> None:
        """Show that some more candidates of a problem were timed or failed, and the best time so far."""

    def operator_timed(self, problem: str, us: float) -> None:
        """Show that a candidate of torch's own operator was timed for a problem."""

    def done(self, problem: str) -> None:
        """Show that the search of a problem has ended."""


class LineProgress(Progress):
    """Writes stages and counts to a stream. Use it as a context manager, which ends the line.

    Args:
        title: Of the run; the first line.
        stream: The stream; standard error by default.
        started: The time.monotonic() from which seconds are counted; None for now.
    """

    def __init__(self, title: str, stream: TextIO | None = None, started: float | None = None) -> None:
        self._stream = stream or sys.stderr
        self._rewrites = self._stream.isatty()
        self._written = time.monotonic()
        self._started = self._written if started is None else started
        self._stage, self._width = "", 0
        self._tuned, self._total, self._kernels, self._compiled, self._candidates = set[str](), 0, 0, 0, 0
        self._line(title)

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def stage(self, text: str) -> None:
        """Write the stage that begins."""
        self._stage = text
        self._line(f"{self._seconds()}  {text}")

    def note(self, text: str) -> None:
        """Write a message."""
        self._line(f"{self._seconds()}  {text}")

    def total(self, problems: int) -> None:
        """Set the number of problems."""
        self._total = problems

    def compiling(self, kernels: int) -> None:
        """Add to the number of kernels."""
        self._kernels += kernels
        self._update()

    def compiled(self, kernels: int, failed: int) -> None:
        """Add to the number of compiled kernels."""
        self._compiled += kernels
        self._update()

    def measured(self, problem: str, candidates: int, best_us: float | None) -> None:
        """Add to the number of candidates."""
        self._candidates += candidates
        self._update()

    def done(self, problem: str) -> None:
        """Add to the number of tuned problems."""
        self._tuned.add(problem)
        self._update()

    def end(self, text: str) -> None:
        """Write the last line."""
        self._line(f"{self._seconds()}  {text}")

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._started:5.0f} s"

    def _update(self) -> None:
        now = time.monotonic()
        if now - self._written < (REWRITE_SECONDS if self._rewrites else LINE_SECONDS):
            return
        counts = f"{self._compiled} of {self._kernels} kernels compiled, {self._candidates} candidates tried"
        text = f"{self._seconds()}  {self._stage}: {counts}, {len(self._tuned)} of {self._total} problems tuned"
        if not self._rewrites:
            self._line(text)
            return
        self._clear()
        self._width, self._written = len(text), now
        self._stream.write(text)
        self._stream.flush()

    def _line(self, text: str) -> None:
        self._clear()
        self._written = time.monotonic()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def _clear(self) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0


class TracedProgress(Progress):
    """Passes events on, and adds them to the trace that is being recorded.

    Args:
        shown: Receives all events.
    """

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        for event in ("note", "total", "compiling", "compiled", "operator_timed", "done"):
            setattr(self, event, getattr(shown, event))
        self._tried: Counter[str] = Counter()
        self._best: dict[str, float] = {}

    def stage(self, text: str) -> None:
        """Begin a slice that lasts until the next stage."""
        timeline.switch(timeline.Lane.STAGES, text)
        self._shown.stage(text)

    def measured(self, problem: str, candidates: int, best_us: float | None) -> None:
        """Count the candidates of all problems, and show the best time of this one."""
        self._tried[problem] += candidates
        timeline.count("candidates tried", self._tried.total())
        if best_us is not None and self._best.get(problem) != best_us:
            self._best[problem] = best_us
            timeline.count(f"us of {problem[:_MAX_CHARACTERS]}", best_us)
        self._shown.measured(problem, candidates, best_us)
