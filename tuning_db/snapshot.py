"""All that a database says, as plain values: what merging, packing, exporting and comparing work on.

Facts are rows by table. Their numbers (id, kernel_id, …) count from 1 in the order of the rows, so the same facts look
the same from whatever database they were read. A binary that no kernel uses is no fact.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from tuning_db.schema import Base
from tuning_db.store import Store

Row = dict[str, Any]
Facts = dict[str, list[Row]]

TABLES = ("device", "environment", "problem", "library", "kernel", "measurement", "plan")
"""The tables that hold facts, those referred to first; a claim is none."""

_KERNEL = Base.metadata.tables["kernel"]

KEYS = {
    "device": ("name",),
    "environment": ("software",),
    "problem": ("text",),
    "library": ("digest",),
    "kernel": ("family", "config", "dtype", "epilogue", "target", "source"),
}
"""What tells a row from the others of its table; a measurement or a plan is told by all that it says."""


def read(store: Store) -> Facts:
    """Everything that a database holds, binaries included."""
    facts: Facts = {}
    numbers: dict[str, dict[int, int]] = {}
    with store.reading() as session:
        for name in TABLES:
            table = Base.metadata.tables[name]
            query = sa.select(table).order_by(table.c.id)
            if name == "library":
                query = sa.select(table).where(table.c.id.in_(sa.select(_KERNEL.c.library_id))).order_by(table.c.digest)
            rows = [dict(row) for row in session.execute(query).mappings()]
            numbers[name] = {row["id"]: i for i, row in enumerate(rows, 1)}
            facts[name] = [renumbered(name, row, lambda other, number: numbers[other][number]) for row in rows]
    return facts


def renumbered(table: str, row: Mapping[str, Any], number: Callable[[str, int], int]) -> Row:
    """A row with `number(table, old)` in place of every number of a row, its own included."""
    new = dict(row)
    if "id" in new:
        new["id"] = number(table, new["id"])
    for key in Base.metadata.tables[table].foreign_keys:
        if new[key.parent.name] is not None:
            new[key.parent.name] = number(key.column.table.name, new[key.parent.name])
    if table == "plan":
        new["choices"] = [{**choice, "kernel": number("kernel", choice["kernel"])} for choice in new["choices"]]
    return new


def key_of(table: str, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a row from the others of its table, where that does not depend on numbers."""
    return tuple(row[name] for name in KEYS[table])


def without_number(row: Mapping[str, Any]) -> Row:
    """A row without its own number."""
    return {name: value for name, value in row.items() if name != "id"}


def content(row: Mapping[str, Any]) -> str:
    """A row without its own number, as text that is equal where all is equal."""
    return json.dumps(without_number(row), sort_keys=True)


def named(facts: Facts, table: str) -> Iterator[tuple[Any, ...] | str]:
    """What tells each row of a table from all others, with other rows by their keys: comparable between databases."""
    if table in KEYS:
        yield from (key_of(table, row) for row in facts[table])
        return
    digests = {name: [_digest(key_of(name, row)) for row in facts[name]] for name in KEYS}
    for row in facts[table]:
        yield content(renumbered(table, without_number(row), lambda other, number: digests[other][number - 1]))


def _digest(key: tuple[Any, ...]) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:8], "big")
