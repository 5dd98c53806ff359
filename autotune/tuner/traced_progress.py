"""The events of a tuning run in its trace: stages are slices, results are counters."""

from __future__ import annotations

from collections import Counter

from autotune.core import timeline
from autotune.tuner.progress import Progress

_MAX_CHARACTERS = 150  # of a problem in a counter's name; the text of a whole network lists all of its operators


class TracedProgress(Progress):
    """Passes events on, and adds them to the trace that is being recorded.

    Args:
        shown: Receives all events.
    """

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._tried: Counter[str] = Counter()
        self._best: dict[str, float] = {}

    def stage(self, text: str) -> None:
        """Begin a slice that lasts until the next stage."""
        timeline.switch(timeline.Lane.STAGES, text)
        self._shown.stage(text)

    def note(self, text: str) -> None:
        """Pass the message on."""
        self._shown.note(text)

    def total(self, problems: int) -> None:
        """Pass the number on."""
        self._shown.total(problems)

    def compiling(self, kernels: int) -> None:
        """Pass the number on."""
        self._shown.compiling(kernels)

    def compiled(self, kernels: int, failed: int) -> None:
        """Pass the numbers on."""
        self._shown.compiled(kernels, failed)

    def measured(self, problem: str, candidates: int, best_us: float | None) -> None:
        """Count the candidates of all problems, and show the best time of this one."""
        self._tried[problem] += candidates
        timeline.count("candidates tried", self._tried.total())
        if best_us is not None and self._best.get(problem) != best_us:
            self._best[problem] = best_us
            timeline.count(f"us of {problem[:_MAX_CHARACTERS]}", best_us)
        self._shown.measured(problem, candidates, best_us)

    def operator_timed(self, problem: str, us: float) -> None:
        """Pass the time on."""
        self._shown.operator_timed(problem, us)

    def done(self, problem: str) -> None:
        """Pass the problem on."""
        self._shown.done(problem)
