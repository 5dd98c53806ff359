"""An in-memory copy of a database as plain values: merging, packing, exporting and comparing work on it.

A snapshot holds rows by table. The ids (id, kernel_id, ...) count from 1 in the order of the rows, so the same rows
look the same, whichever database they were read from. Binaries are in the form that tuners store. Binaries that no
kernel uses are left out, and so are claims, signatures and dictionaries. Each row has its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from tuning_db.schema import Base
from tuning_db.store import Store
from tuning_db.trust import digests

Row = dict[str, Any]
Snapshot = dict[str, list[Row]]

TABLES = ("device", "environment", "problem", "library", "kernel", "measurement", "plan", "network")
"""The tables of a snapshot; a table comes after those that it refers to. Claims and signatures are not part of it."""

_KERNEL, _LIBRARY = Base.metadata.tables["kernel"], Base.metadata.tables["library"]

_QUERIED = 500
"""Digests of one query. A database takes at least 32766 values (SQLite's default limit)."""

NATURAL_KEYS = {
    "device": ("name",),
    "environment": ("software",),
    "problem": ("text",),
    "library": ("digest",),
    "kernel": ("family", "config", "dtype", "epilogue", "target", "source"),
    "network": ("digest",),
}
"""Columns that identify a row of a table. A measurement or a plan is identified by all of its columns."""


def read(store: Store, known: Collection[str] = ()) -> Snapshot:
    """Return everything that a database holds, binaries included.

    Args:
        store: The database.
        known: Digests of the binaries that the reader has: their `blob` is None.

    Raises:
        DatabaseError: A row is not as it was stored, or a packed binary cannot be unpacked.
    """
    snapshot: Snapshot = {}
    new_ids: dict[str, dict[int, int]] = {}
    with store.reading() as session:
        for name in TABLES:
            table = Base.metadata.tables[name]
            query = sa.select(table).order_by(table.c.id)
            if name == "library":
                query = _libraries(with_blobs=not known)
            rows = [dict(row) for row in session.execute(query).mappings()] if store.has(name) else []
            if name == "library" and known:
                rows = _with_blobs(session, rows, known)
            new_ids[name] = {row["id"]: i for i, row in enumerate(rows, 1)}
            snapshot[name] = [with_new_ids(name, row, lambda other, old: new_ids[other][old]) for row in rows]
    digests.fill(store.name, snapshot)
    for row in snapshot["library"]:
        if row["blob"] is not None:
            row["blob"] = store.unpacker.tuned_form(row["blob"], row["digest"], row["size"])
    return snapshot


def _libraries(with_blobs: bool) -> sa.Select[Any]:
    """Return the query for the libraries that kernels use, in the order of their digests."""
    columns = [column for column in _LIBRARY.c if with_blobs or column.name != "blob"]
    used = _LIBRARY.c.id.in_(sa.select(_KERNEL.c.library_id))
    return sa.select(*columns).where(used).order_by(_LIBRARY.c.digest)


def _with_blobs(session: Session, rows: list[Row], known: Collection[str]) -> list[Row]:
    """Return rows of libraries with their blobs, apart from those that are known."""
    wanted = [row["digest"] for row in rows if row["digest"] not in known]
    blobs: dict[str, bytes] = {}
    for start in range(0, len(wanted), _QUERIED):
        query = sa.select(_LIBRARY.c.digest, _LIBRARY.c.blob)
        found = session.execute(query.where(_LIBRARY.c.digest.in_(wanted[start : start + _QUERIED])))
        blobs |= {row.digest: row.blob for row in found}
    return [{**row, "blob": blobs.get(row["digest"])} for row in rows]


def with_new_ids(table: str, row: Mapping[str, Any], new_id: Callable[[str, int], int]) -> Row:
    """Return a row with `new_id(table, old id)` in place of its own id and of all ids that it refers to."""
    new = dict(row)
    if "id" in new:
        new["id"] = new_id(table, new["id"])
    for key in Base.metadata.tables[table].foreign_keys:
        if new[key.parent.name] is not None:
            new[key.parent.name] = new_id(key.column.table.name, new[key.parent.name])
    if table == "plan":
        new["choices"] = [{**choice, "kernel": new_id("kernel", choice["kernel"])} for choice in new["choices"]]
    return new


def natural_key(table: str, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values that identify a row of a table in NATURAL_KEYS."""
    return tuple(row[name] for name in NATURAL_KEYS[table])


def compiled_key(kernel: Mapping[str, Any], library: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what identifies a kernel that was compiled, in every database: its natural key, and how it was compiled.

    How it was compiled follows the source as `+DIGEST`. A merge gives this source to a kernel whose natural key belongs
    to one that was compiled otherwise. The binary is left out: it holds other kernels too, and which ones depends on
    how a build was batched.

    Args:
        kernel: The row of the kernel.
        library: The row of its binary.
    """
    parts = [library["compiler"], library["flags"], kernel["symbol"], kernel["weight_layouts"]]
    mark = f"+{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]}"
    return natural_key("kernel", {**kernel, "source": kernel["source"].removesuffix(mark) + mark})


def without_id(row: Mapping[str, Any]) -> Row:
    """Return a row without its own id."""
    return {name: value for name, value in row.items() if name != "id"}


def content(row: Mapping[str, Any]) -> str:
    """Return a row without its own id as text; the texts are equal if and only if all values are."""
    return json.dumps(without_id(row), sort_keys=True)


def comparable_rows(snapshot: Snapshot, table: str) -> Iterator[tuple[Any, ...] | str]:
    """Yield for each row of a table a value that is the same in each database that has the row.

    The value is the natural key of a row, for a kernel with a binary its `compiled_key`, and for measurements and plans
    the content of the row with digests of these keys in place of the ids of other rows.
    """
    if table in NATURAL_KEYS:
        yield from _keys(snapshot, table)
        return
    digests = {name: [_digest(key) for key in _keys(snapshot, name)] for name in NATURAL_KEYS}
    for row in snapshot[table]:
        yield content(with_new_ids(table, without_id(row), lambda other, old: digests[other][old - 1]))


def _keys(snapshot: Snapshot, table: str) -> Iterator[tuple[Any, ...]]:
    for row in snapshot[table]:
        if table == "kernel" and row["library_id"] is not None:
            yield compiled_key(row, snapshot["library"][row["library_id"] - 1])  # ids count from 1
        else:
            yield natural_key(table, row)


def _digest(key: tuple[Any, ...]) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:8], "big")
