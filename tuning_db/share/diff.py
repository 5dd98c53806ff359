"""Compares two databases: rows that only one of them has, and problems with different winners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tuning_db.schema import Measurement
from tuning_db.share.snapshot import TABLES, Snapshot, comparable_rows
from tuning_db.store import Store
from tuning_db.trust.digests import launch_text


@dataclass(frozen=True)
class Count:
    """Number of a table's rows that are only in the first database, in both, and only in the second."""

    first: int
    both: int
    second: int


def counts(first: Snapshot, second: Snapshot) -> dict[str, Count]:
    """Return for each table how many of its rows the two databases share."""
    result = {}
    for table in TABLES:
        a, b = Counter(comparable_rows(first, table)), Counter(comparable_rows(second, table))
        result[table] = Count((a - b).total(), (a & b).total(), (b - a).total())
    return result


def winners(first: Store, second: Store) -> Iterator[tuple[str, str, Measurement | None, Measurement | None]]:
    """Yield device, problem, and the best candidate of each database, wherever the two candidates differ."""
    devices = sorted({row.name for store in (first, second) for row in store.devices()})
    problems = list(dict.fromkeys(row.text for store in (first, second) for row in store.problems()))
    for device in devices:
        for problem in problems:
            best = [_best(store, device, problem) for store in (first, second)]
            if _identity(best[0]) != _identity(best[1]):
                yield device, problem, best[0], best[1]


def _best(store: Store, device: str, problem: str) -> Measurement | None:
    row = store.device(device)
    return next(iter(store.ranking(row, problem)), None) if row else None


def _identity(best: Measurement | None) -> tuple[str, ...] | None:
    if best is None:
        return None
    return best.kernel.family, best.kernel.config, best.kernel.source, launch_text(best.launch)
