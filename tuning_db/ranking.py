"""Which of several candidates is chosen: not always the shortest median, where medians say too little."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tuning_db import protocols

Row = TypeVar("Row", bound="protocols.Measurement")

WORTH = 1.01
"""Times the shortest median: more than that is not given up for a smaller workspace, however wide the intervals are."""


def ranked(timed: Iterable[Row], finals_first: bool = True) -> list[Row]:
    """Verified measurements of a problem, best first, each candidate once.

    Finalists, which were timed in interleaved rounds, come before all others: their times compare fairly. Those that
    are tied with the fastest stand in the order of choice.
    """
    best: dict[tuple[int, str], Row] = {}
    for row in sorted(timed, key=lambda row: (finals_first and not row.final, row.median_us)):
        best.setdefault((row.kernel_id, str(row.launch)), row)
    return by_choice(list(best.values())) if finals_first else list(best.values())


def by_choice(ranked: Sequence[Row]) -> list[Row]:
    """Measurements in the order of choice, from the order of their medians, finalists first.

    Finalists whose interval overlaps with that of the fastest, and whose median is at most 1 % longer, are tied with
    it: among them the one with the smallest workspace comes first, and of equal ones the one with the shortest median.
    One that is not known counts as none.
    """
    if not ranked or not ranked[0].final or "interval_us" not in ranked[0].details:
        return list(ranked)
    end, most = ranked[0].details["interval_us"][1], WORTH * (ranked[0].median_us or 0)
    near = [row for row in ranked if row.final and (row.median_us or 0) <= most]
    tied = [row for row in near if row.details.get("interval_us", [math.inf])[0] <= end]
    rest = [row for row in ranked if row not in tied]
    return sorted(tied, key=lambda row: row.details.get("workspace_bytes", 0)) + rest
