"""Packs databases for shipping: what plans, steps and finalists need, or everything, in as few bytes as possible.

A packed database also keeps the fastest candidate of each library, such as torch's operator: a training step runs on a
kernel only if that is known to be faster. It keeps the fastest candidate of all even if a run ended before its finals,
and the measurements that the plans name, which tell the problems of their layers. It keeps all columns that digests of
rows cover, so signatures and digests are those of the same rows elsewhere.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sa

from tuning_db.errors import DatabaseError, explained
from tuning_db.location import Location
from tuning_db.ranking import ranked
from tuning_db.schema import Base, Dictionary, Extract, Measurement
from tuning_db.share.dictionaries import packed
from tuning_db.share.merge import Outcome, merge_into
from tuning_db.share.snapshot import TABLES, Row, Snapshot, read
from tuning_db.store import Store
from tuning_db.trust.binaries import zstandard
from tuning_db.trust.digests import launch_text

DROPPED = frozenset(
    "after before gpu host_us kernel repeatable repeated_us rounds seconds state tolerance".split()  # noqa: SIM905
)
"""Entries of a measurement's details that are left out: how it was taken. No digest covers them, and no network and no
tuning run reads them."""

EXTRACT = (
    "an extract with the newest plan of each network and step, {spares}, and what these need; other trials and how "
    "measurements were taken are left out"
)

_PAGE_BYTES = 2048
"""SQLite's page: with 1024 and 4096 bytes, packed databases are larger by 4 % and 1 %."""


def merge(sources: Sequence[Location], target: Path) -> Outcome:
    """Merge databases into a new file, which appears when it is complete.

    Raises:
        DatabaseError: If `target` exists, cannot be written, or the databases contradict each other.
    """
    outcome, extracts = Outcome(), dict[str, None]()
    parts: list[Snapshot] = []
    for source in sources:
        with Store.open(source) as store:
            parts.append(read(store))
            extracts |= dict.fromkeys(store.extracts())
    with new_database(target) as store:
        for snapshot in parts:
            one = merge_into(store, snapshot)
            outcome.added += one.added
            outcome.known += one.known
            outcome.others += one.others
        _add(store, Extract, [{"kept": kept} for kept in extracts])
    return outcome


def pack(sources: Sequence[Location], target: Path, spares: int | None) -> None:
    """Write what plans, steps and finalists of `sources` need to a new file, with its binaries packed.

    Args:
        sources: The databases.
        target: The new file.
        spares: Candidates to keep for each problem and device: if another batch size refuses the first, the next one
            is used. 0 keeps only the problems and candidates that plans name, and the best candidate of each problem of
            an operator that no plan names, such as a gradient of a training step; None keeps all rows.

    Raises:
        DatabaseError: As of `merge`; also if a binary is damaged or Python lacks Zstandard.
    """
    _require_absent(target)
    zstandard(str(target))
    with tempfile.TemporaryDirectory() as folder:
        merged = Path(folder) / "all.db"
        merge(sources, merged)
        with Store.open(merged) as store:
            kept = read(store) if spares is None else _needed(store, spares)
            extracts = store.extracts() if spares is None else [_extract(spares)]
    kept["library"], dictionaries = packed(kept, f"a source of {target}")
    with new_database(target, is_packed=True) as store:
        merge_into(store, kept)
        _add(store, Dictionary, dictionaries)
        _add(store, Extract, [{"kept": kept} for kept in extracts])


def _add(store: Store, table: type[Dictionary | Extract], rows: Sequence[Row]) -> None:
    with store.writing() as session:
        if rows:
            session.execute(sa.insert(table), rows)


@contextmanager
def new_database(target: Path, is_packed: bool = False) -> Iterator[Store]:
    """Make a database that appears when it is complete: in a folder beside `target`, then moved. Its folder is made.

    Args:
        target: The file.
        is_packed: Whether to leave no free space in it.

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
            if is_packed:
                _compact(partial)
            os.replace(partial, target)
    except OSError as error:
        raise DatabaseError(f"cannot write {target}: {error.strerror}") from error


def _require_absent(target: Path) -> None:
    if target.exists():
        raise DatabaseError(f"{target} exists: remove it or name another file")


def _compact(path: Path) -> None:
    """Write a file again without free space, and JSON without spaces."""
    with explained(str(path)), closing(sqlite3.connect(path)) as connection:
        connection.create_function("dense", 1, lambda text: json.dumps(json.loads(text), separators=(",", ":")))
        for table in Base.metadata.sorted_tables:
            for name in (column.name for column in table.c if isinstance(column.type, sa.JSON)):
                connection.execute(f"UPDATE {table.name} SET {name} = dense({name})")
        connection.commit()
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("VACUUM")


def _extract(spares: int) -> str:
    best = f"the {spares} best candidates of each problem" if spares > 1 else "the best candidate of each problem"
    return EXTRACT.format(spares=best if spares else f"{best} of an operator that no plan names")


def _needed(store: Store, spares: int) -> Snapshot:
    """Return the rows that running needs. The store's ids must be those of its snapshot: it was just merged."""
    plans = {(row.device_id, row.network): row for row in store.plans()}.values()
    named = {
        (plan.device_id, choice["kernel"], launch_text(choice["launch"]), choice["us"])
        for plan in plans
        for choice in plan.choices
    }
    found: list[tuple[str, list[Measurement], list[Measurement]]] = []
    for device in store.devices():
        for problem in store.problems():
            timed = store.measurements(device, problem.text, "ok")
            found.append((problem.operator, timed, [row for row in timed if _candidate(row) in named]))
    operators = {operator for operator, _, planned in found if planned}
    measurements: set[int] = set()
    for operator, timed, planned in found:
        most = spares if operator in operators else max(spares, 1)
        if most or planned:
            fastest = ranked(timed, finals_first=False)[: min(spares, 1)]
            measurements |= {row.id for row in (*planned, *_best(ranked(timed), most), *fastest)}
    snapshot = read(store)
    snapshot["measurement"] = [_trimmed(row) for row in snapshot["measurement"] if row["id"] in measurements]
    newest = {row.id for row in plans}
    snapshot["plan"] = [_without_places(row) for row in snapshot["plan"] if row["id"] in newest]
    used: dict[str, set[int]] = {table: set() for table in TABLES}
    for row in (*snapshot["measurement"], *snapshot["plan"]):
        for table in ("device", "environment", "problem", "kernel"):
            used[table].add(row.get(f"{table}_id") or 0)
    used["kernel"] |= {choice["kernel"] for row in snapshot["plan"] for choice in row["choices"]}
    for table in ("device", "environment", "problem", "kernel"):
        snapshot[table] = [row for row in snapshot[table] if row["id"] in used[table]]
    needed = {row["library_id"] for row in snapshot["kernel"]}
    snapshot["library"] = [row for row in snapshot["library"] if row["id"] in needed]
    return snapshot


def _trimmed(row: Row) -> Row:
    """Return a measurement without its samples, its date and the entries of its details that are DROPPED."""
    details = {name: value for name, value in row["details"].items() if name not in DROPPED}
    return {**row, "samples_us": [], "recorded": None, "details": details}


def _without_places(row: Row) -> Row:
    """Return a plan without the places of its activations, which its network and its layers determine."""
    return {**row, "details": {name: value for name, value in row["details"].items() if name != "memory"}}


def _best(ranking: Sequence[Measurement], spares: int) -> list[Measurement]:
    """Return the first `spares` of a ranking, and the fastest candidate of each library, which has no binary."""
    libraries: dict[str, Measurement] = {}
    for row in ranking:
        if row.kernel.library_id is None:
            libraries.setdefault(row.kernel.family, row)
    return [*ranking[:spares], *libraries.values()]


def _candidate(row: Measurement) -> tuple[int, int, str, float | None]:
    """Return what identifies a measurement in a plan."""
    return row.device_id, row.kernel_id, launch_text(row.launch), row.median_us
