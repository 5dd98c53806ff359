"""Unites databases: every fact of each, those that are the same once.

Where two disagree:
- A kernel that failed to compile in one and compiled in another is a compiled one.
- A kernel that was compiled in both, but by another compiler or with other flags, is two kernels: the later one's
  source is marked with a digest of how it was made, and its measurements stay its own. The tuner takes it for one
  of an older source; the runtime uses it like any other.
- A device's limits are the highest that were measured.
- A device of one name with two targets is no device: nothing is merged.
- Of plans for the same network the later database's counts as the newer.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.orm import Session

from tuning_db.errors import DatabaseError
from tuning_db.schema import Base
from tuning_db.snapshot import TABLES, Facts, Row, content, key_of, renumbered, without_number
from tuning_db.store import Store


@dataclass
class Outcome:
    """What uniting did. added, known: rows by table; others: kernels kept beside one of the same name."""

    added: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    others: list[str] = field(default_factory=list)


def unite(store: Store, facts: Facts) -> Outcome:
    """Add facts to a database, all or, where it raises DatabaseError, none."""
    with store.writing() as session:
        return _Union(session, facts, store.name).unite()


class _Union:
    def __init__(self, session: Session, facts: Facts, name: str) -> None:
        self._session, self._facts, self._name = session, facts, name
        self._numbers: dict[str, dict[int, int]] = {table: {} for table in TABLES}
        self._outcome = Outcome()

    def unite(self) -> Outcome:
        self._devices()
        for table in ("environment", "problem"):
            known = self._known(table)
            for row in self._facts[table]:
                self._settle(table, row, known.get(key_of(table, row)))
        self._kernels()
        for table in ("measurement", "plan"):
            self._measured(table)
        return self._outcome

    def _devices(self) -> None:
        known = self._known("device")
        for row in self._facts["device"]:
            other = known.get(key_of("device", row))
            if other and other["target"] != row["target"]:
                raise DatabaseError(
                    f"{self._name}: device '{row['name']}' runs {other['target']} here and {row['target']} there: one "
                    "of the two is not what its name says; nothing was merged"
                )
            self._settle("device", row, other)
            higher = {name: row[name] for name in ("flops_per_us", "bytes_per_us") if other and row[name] > other[name]}
            if other and higher:
                self._update("device", other["id"], higher)

    def _kernels(self) -> None:
        """Kernels, and the binaries of those that are added."""
        libraries = {row["id"]: row for row in self._facts["library"]}
        present = self._known("library")
        made = {row["id"]: row for row in present.values()}
        known = self._known("kernel")
        for original in self._facts["kernel"]:
            row, library = dict(original), libraries.get(original["library_id"])
            other = known.get(key_of("kernel", row))
            if library and other and other["library_id"]:
                how, its = _making(row, library), _making(other, made[other["library_id"]])
                if how != its:
                    self._outcome.others.append(f"{row['family']} {row['config']}: {library['compiler']}")
                    row["source"] += f"+{hashlib.sha256(how.encode()).hexdigest()[:8]}"
                    other = known.get(key_of("kernel", row))
            if library is None or (other and other["library_id"]):
                self._settle("kernel", row, other)
                continue
            if library["id"] not in self._numbers["library"]:
                self._settle("library", library, present.get(key_of("library", library)))
            if other is None:
                self._settle("kernel", row, None)
                continue
            self._numbers["kernel"][row["id"]] = other["id"]
            now = {"symbol": row["symbol"], "weight_layouts": row["weight_layouts"], "error": None}
            self._update("kernel", other["id"], {**now, "library_id": self._number("library", library["id"])})
            self._outcome.known["kernel"] += 1

    def _measured(self, table: str) -> None:
        """Rows that are told by all that they say. The same twice in one database is twice a fact."""
        here = Counter(content(row) for row in self._rows(table))
        new = []
        for row in self._facts[table]:
            own = renumbered(table, without_number(row), self._number)
            text = content(own)
            if here[text] > 0:
                here[text] -= 1
                self._outcome.known[table] += 1
            else:
                new.append(own)
        if new:
            self._session.execute(sa.insert(Base.metadata.tables[table]), new)
        self._outcome.added[table] += len(new)

    def _settle(self, table: str, row: Row, other: Row | None) -> None:
        """Take a row for one that is there, or add it."""
        if other is None:
            own = renumbered(table, without_number(row), self._number)
            done = self._session.execute(sa.insert(Base.metadata.tables[table]).values(own))
            self._numbers[table][row["id"]] = done.inserted_primary_key[0]  # type: ignore[attr-defined]
            self._outcome.added[table] += 1
        else:
            self._numbers[table][row["id"]] = other["id"]
            self._outcome.known[table] += 1

    def _number(self, table: str, number: int) -> int:
        return self._numbers[table][number]

    def _update(self, table: str, number: int, values: Row) -> None:
        of = Base.metadata.tables[table]
        self._session.execute(sa.update(of).where(of.c.id == number).values(values))

    def _known(self, table: str) -> dict[tuple[object, ...], Row]:
        return {key_of(table, row): row for row in self._rows(table)}

    def _rows(self, table: str) -> list[Row]:
        of = Base.metadata.tables[table]
        columns = [column for column in of.c if column.name != "blob"]
        return [dict(row) for row in self._session.execute(sa.select(*columns).order_by(of.c.id)).mappings()]


def _making(kernel: Mapping[str, object], library: Mapping[str, object]) -> str:
    """How a kernel was made, apart from the text and headers that its source is the digest of.

    Not the binary: that holds other kernels too, and which ones is a matter of chance.
    """
    parts = [library["compiler"], library["flags"], kernel["symbol"], kernel["weight_layouts"]]
    return json.dumps(parts, sort_keys=True)
