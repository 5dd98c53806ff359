"""Ranks candidates by time, and breaks statistical ties by workspace size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tuning_db.trust.digests import launch_text

if TYPE_CHECKING:
    from tuning_db import protocols

Row = TypeVar("Row", bound="protocols.Measurement")

MAX_TIE_RATIO = 1.01
"""A candidate with a median above MAX_TIE_RATIO x the shortest median is not tied, however wide the intervals are."""


def ranked(timed: Iterable[Row], finals_first: bool = True) -> list[Row]:
    """Return verified measurements of one problem, best first, one for each kernel and launch.

    Args:
        timed: Measurements with a median.
        finals_first: Rank finalists before all others, and break ties between them: they were timed in interleaved
            rounds, so that their times compare fairly. Otherwise rank by the median alone.
    """
    best: dict[tuple[int, str], Row] = {}
    for row in sorted(timed, key=lambda row: (finals_first and not row.final, row.median_us)):
        best.setdefault((row.kernel_id, launch_text(row.launch)), row)
    return break_ties(list(best.values())) if finals_first else list(best.values())


def break_ties(ranked: Sequence[Row]) -> list[Row]:
    """Return ranked measurements with the finalists that tie with the fastest in the order of their workspace.

    A finalist ties with the fastest one if their 95 % intervals overlap and its median is at most MAX_TIE_RATIO times
    the shortest. An unknown workspace counts as 0 bytes. Equal workspaces keep the order of the medians.

    Args:
        ranked: Measurements in the order of their medians, finalists first.
    """
    if not ranked or not ranked[0].final or "interval_us" not in ranked[0].details:
        return list(ranked)
    interval_end, longest = ranked[0].details["interval_us"][1], MAX_TIE_RATIO * (ranked[0].median_us or 0)
    near = [row for row in ranked if row.final and (row.median_us or 0) <= longest]
    tied = [row for row in near if row.details.get("interval_us", [math.inf])[0] <= interval_end]
    rest = [row for row in ranked if row not in tied]
    return sorted(tied, key=lambda row: row.details.get("workspace_bytes", 0)) + rest
