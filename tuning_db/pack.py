"""Packs databases for shipping: the best candidates of every problem and device, the newest plans, nothing else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tuning_db.errors import DatabaseError
from tuning_db.location import Location
from tuning_db.merge import Outcome, unite
from tuning_db.snapshot import TABLES, Facts, read
from tuning_db.store import Store

KEPT = 3
"""Candidates kept for each problem and device: should one be refused by another batch size, the next one serves."""


def merge(sources: Sequence[Location], target: Path) -> Outcome:
    """Unite databases in a new file, which appears when it is whole; raises DatabaseError if `target` exists."""
    return _unite_new([_facts(source) for source in sources], target)


def pack(sources: Sequence[Location], target: Path) -> None:
    """Write what the runtime needs of `sources` to a new file; raises DatabaseError if `target` exists."""
    _refuse(target)
    with tempfile.TemporaryDirectory() as folder:
        everything = Path(folder) / "all.db"
        merge(sources, everything)
        with Store.open(everything) as store:
            kept = _needed(store)
    _unite_new([kept], target)


def _unite_new(parts: Sequence[Facts], target: Path) -> Outcome:
    """Facts in a new file. It is written beside its place and moved there: nobody sees a part of it."""
    _refuse(target)
    outcome = Outcome()
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
            partial = Path(folder) / target.name
            with Store.create(partial) as store:
                for facts in parts:
                    one = unite(store, facts)
                    outcome.added += one.added
                    outcome.known += one.known
                    outcome.others += one.others
            os.replace(partial, target)
    except OSError as error:
        raise DatabaseError(f"cannot write {target}: {error.strerror}") from error
    return outcome


def _refuse(target: Path) -> None:
    if target.exists():
        raise DatabaseError(f"{target} exists: remove it or name another file")


def _facts(source: Location) -> Facts:
    with Store.open(source) as store:
        return read(store)


def _needed(store: Store) -> Facts:
    """The facts that running needs, of a store whose numbers are those of its facts: one that was just merged."""
    measurements = {
        row.id
        for device in store.devices()
        for problem in store.problems()
        for row in store.ranking(device, problem.text)[:KEPT]
    }
    plans = {row.id for row in {(row.device_id, row.network): row for row in store.plans()}.values()}
    facts = read(store)
    facts["measurement"] = [row for row in facts["measurement"] if row["id"] in measurements]
    facts["plan"] = [row for row in facts["plan"] if row["id"] in plans]
    used: dict[str, set[int]] = {table: set() for table in TABLES}
    for row in (*facts["measurement"], *facts["plan"]):
        for table in ("device", "environment", "problem", "kernel"):
            used[table].add(row.get(f"{table}_id") or 0)
    used["kernel"] |= {choice["kernel"] for row in facts["plan"] for choice in row["choices"]}
    for table in ("device", "environment", "problem", "kernel"):
        facts[table] = [row for row in facts[table] if row["id"] in used[table]]
    return facts
