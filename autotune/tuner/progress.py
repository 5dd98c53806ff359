"""What a tuning run says while it works. The base says nothing; scripts/tune.py draws it."""

from __future__ import annotations


class Progress:
    """Receives events; override what you want to show. All times are microseconds."""

    def stage(self, text: str) -> None:
        """A new stage begins."""

    def total(self, problems: int) -> None:
        """How many problems there are to tune."""

    def compiling(self, kernels: int) -> None:
        """So many more kernels are about to be compiled."""

    def compiled(self, kernels: int, failed: int) -> None:
        """So many of them are done."""

    def measured(self, problem: str, candidates: int, best_us: float | None) -> None:
        """So many more candidates of a problem were timed or failed; the best time so far."""

    def done(self, problem: str) -> None:
        """A problem's search has ended."""
