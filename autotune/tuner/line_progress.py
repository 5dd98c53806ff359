"""Shows a tuning run as lines of text: in a terminal the last line is rewritten, in a notebook or log it is not."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from autotune.tuner.progress import Progress

LINE_SECONDS = 10.0
"""Time between two lines of one stage where lines cannot be rewritten."""
REWRITE_SECONDS = 0.25
"""Time between two changes of a line that can."""


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
