"""The phases of a tuning run, and the shares of the time that they may take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core import Deadline, timeline

PREPARATION = "preparation"
"""Before the first phase: imports, and the capture of the networks."""
SEARCH, FINALS, SETTLING = "search", "finals", "settling"
SHARES = {SEARCH: 0.6, FINALS: 0.1, SETTLING: 0.3}
"""Phase -> its share of the time. Settling is the choice of kernels inside the whole network."""


@dataclass(frozen=True)
class PhaseTime:
    """The time of a phase.

    Attributes:
        name: The phase.
        granted: Seconds that it was allowed to take; infinite without a budget.
        spent: Seconds that it took.
    """

    name: str
    granted: float
    spent: float


class Phases:
    """The phases of one run, one after the other.

    A phase that begins gets its part of the time that is left, which it shares with the phases after it.

    Args:
        deadline: The deadline of the run.
        names: The phases in their order; keys of SHARES.

    Attributes:
        current: The deadline of the phase that has begun; the run's before the first one.
    """

    def __init__(self, deadline: Deadline, names: Sequence[str]) -> None:
        self._deadline, self._left = deadline, list(names)
        self.current = deadline
        self._begun: list[tuple[str, float, float]] = []  # name, seconds granted, seconds since the start of the run

    def begin(self, name: str) -> Deadline:
        """Begin a phase, leaving out those before it, and return its deadline."""
        self._left = self._left[self._left.index(name) :]
        self.current = self._deadline.share(SHARES[name] / sum(SHARES[each] for each in self._left))
        self._begun.append((name, self.current.left, self._deadline.elapsed))
        self._left = self._left[1:]
        timeline.switch(timeline.Lane.PHASES, name)
        return self.current

    def waiting(self, share: float) -> Deadline:
        """Return the deadline of something in the current phase that may take a share of the whole run's time."""
        return self.current.within(share * self._deadline.seconds)

    def times(self) -> list[PhaseTime]:
        """Return the times of the phases that have begun, the last one up to now."""
        if math.isinf(self._deadline.end):
            return []
        ends = [*(since for *_, since in self._begun[1:]), self._deadline.elapsed]
        first = [PhaseTime(PREPARATION, math.inf, self._begun[0][2])] if self._begun else []
        return first + [
            PhaseTime(name, granted, end - since) for (name, granted, since), end in zip(self._begun, ends, strict=True)
        ]
