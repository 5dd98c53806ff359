"""Events of a tuning run. The base class ignores them; `autotune tune` draws them."""

from __future__ import annotations


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
