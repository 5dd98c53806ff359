"""Packs databases for shipping: the best candidates of every problem and device, and the newest plans.

A packed database also keeps the fastest candidate of each library, such as torch's operator: a training step runs on a
kernel only if that is known to be faster. It keeps the fastest candidate of all even if a run ended before its finals,
and the measurements that the plans name, which tell the problems of their layers.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tuning_db.errors import DatabaseError
from tuning_db.location import Location
from tuning_db.ranking import ranked
from tuning_db.schema import Measurement
from tuning_db.share.merge import Outcome, merge_into
from tuning_db.share.snapshot import TABLES, Snapshot, read
from tuning_db.store import Store
from tuning_db.trust.digests import launch_text, recompress

KEPT = 3
"""Candidates kept for each problem and device: if another batch size refuses the first, the next one is used."""


def merge(sources: Sequence[Location], target: Path) -> Outcome:
    """Merge databases into a new file, which appears when it is complete.

    Raises:
        DatabaseError: If `target` exists, cannot be written, or the databases contradict each other.
    """
    return _write_new([_read(source) for source in sources], target)


def pack(sources: Sequence[Location], target: Path) -> None:
    """Write the rows of `sources` that the runtime needs to a new file; raises DatabaseError as `merge` does."""
    _require_absent(target)
    with tempfile.TemporaryDirectory() as folder:
        everything = Path(folder) / "all.db"
        merge(sources, everything)
        with Store.open(everything) as store:
            kept = _needed(store)
    _write_new([kept], target)


def _write_new(parts: Sequence[Snapshot], target: Path) -> Outcome:
    """Write snapshots to a new file."""
    outcome = Outcome()
    with new_database(target) as store:
        for snapshot in parts:
            one = merge_into(store, snapshot)
            outcome.added += one.added
            outcome.known += one.known
            outcome.others += one.others
    return outcome


@contextmanager
def new_database(target: Path) -> Iterator[Store]:
    """Make a database that appears when it is complete: in a folder beside `target`, then moved. Its folder is made.

    Raises:
        DatabaseError: If `target` exists or cannot be written.
    """
    _require_absent(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
            partial = Path(folder) / target.name
            with Store.create(partial) as store:
                yield store
            os.replace(partial, target)
    except OSError as error:
        raise DatabaseError(f"cannot write {target}: {error.strerror}") from error


def _require_absent(target: Path) -> None:
    if target.exists():
        raise DatabaseError(f"{target} exists: remove it or name another file")


def _read(source: Location) -> Snapshot:
    with Store.open(source) as store:
        return read(store)


def _needed(store: Store) -> Snapshot:
    """Return the rows that running needs. The store's ids must be those of its snapshot: it was just merged."""
    plans = {(row.device_id, row.network): row for row in store.plans()}.values()
    named = {
        (plan.device_id, choice["kernel"], launch_text(choice["launch"]), choice["us"])
        for plan in plans
        for choice in plan.choices
    }
    measurements: set[int] = set()
    for device in store.devices():
        for problem in store.problems():
            timed = store.measurements(device, problem.text, "ok")
            measurements |= {row.id for row in (*_best(ranked(timed)), *ranked(timed, finals_first=False)[:1])}
            measurements |= {row.id for row in timed if _candidate(row) in named}
    snapshot = read(store)
    snapshot["measurement"] = [row for row in snapshot["measurement"] if row["id"] in measurements]
    newest = {row.id for row in plans}
    snapshot["plan"] = [row for row in snapshot["plan"] if row["id"] in newest]
    used: dict[str, set[int]] = {table: set() for table in TABLES}
    for row in (*snapshot["measurement"], *snapshot["plan"]):
        for table in ("device", "environment", "problem", "kernel"):
            used[table].add(row.get(f"{table}_id") or 0)
    used["kernel"] |= {choice["kernel"] for row in snapshot["plan"] for choice in row["choices"]}
    for table in ("device", "environment", "problem", "kernel"):
        snapshot[table] = [row for row in snapshot[table] if row["id"] in used[table]]
    needed = {row["library_id"] for row in snapshot["kernel"]}
    snapshot["library"] = [
        {**row, "blob": recompress(row["blob"])} if row["id"] in needed else row for row in snapshot["library"]
    ]
    return snapshot


def _best(ranking: Sequence[Measurement]) -> list[Measurement]:
    """Return the first KEPT of a ranking, and the fastest candidate of each library, which has no binary."""
    libraries: dict[str, Measurement] = {}
    for row in ranking:
        if row.kernel.library_id is None:
            libraries.setdefault(row.kernel.family, row)
    return [*ranking[:KEPT], *libraries.values()]


def _candidate(row: Measurement) -> tuple[int, int, str, float | None]:
    """Return what identifies a measurement in a plan."""
    return row.device_id, row.kernel_id, launch_text(row.launch), row.median_us
