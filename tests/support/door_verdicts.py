"""Decides whether a door falls short: it failed, is slower or less exact than others, or took longer than allowed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune_cli.timing import Ratio, paired_ratio

EAGER, PEER = "eager", "torch.compile"
"""The names of the outcomes that doors are compared with."""
SLOWER, LESS_EXACT, LONGER = 1.03, 1.5, 1.1
"""A door falls short if its time is more than SLOWER times that of a rival, its error more than LESS_EXACT times
eager's, or its tune more than LONGER times the budget."""


@dataclass(frozen=True)
class Outcome:
    """How a way to run a network went.

    Attributes:
        reason: Why it did not run; None if it ran.
        us: Microseconds of a call, one value for each round; the rounds of all outcomes are the same.
        error: Relative error of the results.
        tune_seconds: From the call of a door to its return; None for what is no door.
    """

    reason: str | None = None
    us: Sequence[float] = ()
    error: float = 0.0
    tune_seconds: float | None = None

    @property
    def median_us(self) -> float:
        """The median time of a call; infinite if there is none."""
        return statistics.median(self.us) if self.us else float("inf")


def rivals(outcomes: Mapping[str, Outcome], door: str) -> dict[str, Ratio]:
    """Return the time of a door over that of the fastest other door and of torch.compile, as far as they ran.

    Args:
        outcomes: The outcomes by name: EAGER, PEER and the doors.
        door: The name of a door that ran.
    """
    others = [name for name in outcomes if name not in (EAGER, PEER, door)]
    fastest = min(others, key=lambda name: outcomes[name].median_us, default=PEER)
    ran = [name for name in dict.fromkeys((fastest, PEER)) if name in outcomes and outcomes[name].us]
    return {name: paired_ratio(outcomes[door].us, outcomes[name].us) for name in ran}


def shortfalls(outcomes: Mapping[str, Outcome], door: str, budget: float) -> list[str]:
    """Return in which ways a door falls short.

    A time counts as longer if the lower end of the 95 % interval of the ratio is above the limit.

    Args:
        outcomes: The outcomes by name: EAGER, PEER and the doors.
        door: The name of the door.
        budget: Seconds of its run.
    """
    own = outcomes[door]
    if own.reason is not None:
        return [f"failed: {own.reason}"]
    found = [
        f"{ratio.median:.2f} times the time of {name} ({ratio.low:.2f}-{ratio.high:.2f})"
        for name, ratio in rivals(outcomes, door).items()
        if ratio.low > SLOWER
    ]
    if not own.error <= LESS_EXACT * outcomes[EAGER].error:  # NaN falls short, too
        found.append(f"error {own.error:.1e}, eager's {outcomes[EAGER].error:.1e}")
    if (own.tune_seconds or 0.0) > LONGER * budget:
        found.append(f"the tune took {own.tune_seconds:.1f} s of {budget:.1f} s")
    return found
