"""Deadlines of a whole run and of its parts, and durations as text.

A run has one deadline, which is made when its command starts. A part gets an earlier deadline, which is computed from
the time that is left when the part begins. So the time that a part leaves unused goes to the parts after it, and a part
that overruns shortens all later parts by the same share.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """A time at which something must have ended.

    Attributes:
        end: Time of `clock` in seconds; infinite for no deadline.
        start: Time of `clock` from which durations count.
        clock: The clock.
    """

    end: float = math.inf
    start: float = 0.0
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, start: float | None = None) -> Deadline:
        """Return the deadline of a run.

        Args:
            seconds: Duration of the run.
            start: The time.monotonic() at which the run started; None for now.
        """
        start = time.monotonic() if start is None else start
        return cls(start + seconds, start)

    @property
    def left(self) -> float:
        """Return the seconds that are left; 0 after the end."""
        return max(0.0, self.end - self.clock())

    @property
    def is_over(self) -> bool:
        """Return whether no time is left."""
        return self.left <= 0.0

    @property
    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return self.clock() - self.start

    @property
    def seconds(self) -> float:
        """Return the seconds from the start to the end."""
        return self.end - self.start

    def share(self, share: float) -> Deadline:
        """Return the deadline of a part that begins now and may take a share of the time that is left."""
        return self.within(share * self.left)

    def within(self, seconds: float) -> Deadline:
        """Return the deadline of a part that begins now and may take some seconds, but no longer than this deadline."""
        now = self.clock()
        return Deadline(min(self.end, now + seconds), now, self.clock)

    def before(self, seconds: float) -> Deadline:
        """Return a deadline that ends some seconds earlier, with the same start."""
        return Deadline(self.end - seconds, self.start, self.clock)


NEVER = Deadline()
"""No deadline."""


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def seconds_of(duration: str | float) -> float:
    """Return the seconds of a number, or of a text such as "90s", "5m", "1h" or "90".

    Raises:
        ValueError: It is not a duration.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(duration))
    if not found:
        raise ValueError(f"'{duration}' is not a time: write 90s, 5m or 1h")
    return float(found[1]) * _UNITS[found[2]]
