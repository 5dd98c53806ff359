"""Compares two databases: what only one of them says, and where their winners differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tuning_db.schema import Measurement
from tuning_db.snapshot import TABLES, Facts, named
from tuning_db.store import Store


@dataclass(frozen=True)
class Count:
    """Rows of a table that are only in the first database, in both, only in the second."""

    first: int
    both: int
    second: int


def counts(first: Facts, second: Facts) -> dict[str, Count]:
    """Table -> how many of its facts are where."""
    result = {}
    for table in TABLES:
        a, b = Counter(named(first, table)), Counter(named(second, table))
        result[table] = Count((a - b).total(), (a & b).total(), (b - a).total())
    return result


def winners(first: Store, second: Store) -> Iterator[tuple[str, str, Measurement | None, Measurement | None]]:
    """(device, problem, the first's best, the second's best) wherever they are not the same candidate."""
    devices = sorted({row.name for store in (first, second) for row in store.devices()})
    problems = list(dict.fromkeys(row.text for store in (first, second) for row in store.problems()))
    for device in devices:
        for problem in problems:
            best = [_best(store, device, problem) for store in (first, second)]
            if _name(best[0]) != _name(best[1]):
                yield device, problem, best[0], best[1]


def _best(store: Store, device: str, problem: str) -> Measurement | None:
    row = store.device(device)
    return next(iter(store.ranking(row, problem)), None) if row else None


def _name(best: Measurement | None) -> tuple[str, ...] | None:
    if best is None:
        return None
    return best.kernel.family, best.kernel.config, best.kernel.source, str(best.launch)
