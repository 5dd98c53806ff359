"""Which of several finalists is chosen: not always the shortest median, where medians say too little."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuning_db.schema import Measurement


def by_choice(ranked: Sequence[Measurement]) -> list[Measurement]:
    """Measurements in the order of choice, from the order of their medians, finalists first.

    Finalists whose interval overlaps with that of the fastest are tied with it: among them the one with the smallest
    workspace comes first, and of equal ones the one with the shortest median. One that is not known counts as none.
    """
    if not ranked or not ranked[0].final or "interval_us" not in ranked[0].details:
        return list(ranked)
    end = ranked[0].details["interval_us"][1]
    tied = [row for row in ranked if row.final and row.details.get("interval_us", [math.inf])[0] <= end]
    rest = [row for row in ranked if row not in tied]
    return sorted(tied, key=lambda row: row.details.get("workspace_bytes", 0)) + rest
