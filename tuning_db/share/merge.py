"""Merges databases: keeps every row of each, and rows that are the same once.

Where two databases disagree:
- A kernel that failed to compile in one and compiled in the other counts as compiled.
- A kernel that compiled in both, but with another compiler or other flags, becomes two kernels. A digest of the way it
  was compiled is appended to the `source` of the second one, which keeps its own measurements. The tuner treats it like
  a kernel of an older source; the runtime uses it like any other. Such a kernel is recognised by the way it was
  compiled, whichever of the two has the longer source in a database, so merging back and forth adds nothing.
- The limits of a device are the highest that were measured.
- A device with two targets is an error, and nothing is merged.
- Of two plans for the same network, that of the database merged last counts as the newer one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.orm import Session

from tuning_db.errors import DatabaseError
from tuning_db.schema import RATES, Base
from tuning_db.share.snapshot import (
    TABLES,
    Row,
    Snapshot,
    compiled_key,
    content,
    natural_key,
    with_new_ids,
    without_id,
)
from tuning_db.store import Store


@dataclass
class Outcome:
    """Result of a merge.

    added, known: Number of rows by table that were added, or that were there already.
    changed: Number of changes of the latter by table, such as a kernel that had failed to compile and now is compiled.
    others: Kernels that were kept beside one with the same natural key, as text.
    """

    added: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    others: list[str] = field(default_factory=list)


def merge_into(store: Store, snapshot: Snapshot) -> Outcome:
    """Add the rows of a snapshot to a database in one transaction.

    Raises:
        DatabaseError: If the databases contradict each other; then nothing is added.
    """
    with store.writing() as session:
        return merge_rows(session, snapshot, store.name)


def merge_rows(session: Session, snapshot: Snapshot, name: str) -> Outcome:
    """Do `merge_into` within a transaction that writes; `name` is that of the database."""
    return _Merge(session, snapshot, name).run()


class _Merge:
    """One merge.

    `_ids` maps each table's ids in the snapshot to ids in the database. `_twins` maps the id of a kernel that the
    database has twice, with two sources, to the id of the first one: together they hold the measurements of the kernel.
    """

    def __init__(self, session: Session, snapshot: Snapshot, name: str) -> None:
        self._session, self._snapshot, self._name = session, snapshot, name
        self._ids: dict[str, dict[int, int]] = {table: {} for table in TABLES}
        self._twins: dict[int, int] = {}
        self._outcome = Outcome()

    def run(self) -> Outcome:
        self._devices()
        for table in ("environment", "problem", "network"):
            known = self._known(table)
            for row in self._snapshot[table]:
                self._match_or_add(table, row, known.get(natural_key(table, row)))
        self._kernels()
        for table in ("measurement", "plan"):
            self._add_by_content(table)
        return self._outcome

    def _devices(self) -> None:
        known = self._known("device")
        for row in self._snapshot["device"]:
            other = known.get(natural_key("device", row))
            if other and other["target"] != row["target"]:
                raise DatabaseError(
                    f"{self._name}: device '{row['name']}' runs {other['target']} here and {row['target']} there, so "
                    "one of the two names is wrong; nothing was merged"
                )
            self._match_or_add("device", row, other)
            higher = {name: row[name] for name in RATES if other and row[name] > other[name]}
            if other and higher:
                self._update("device", other["id"], higher)

    def _kernels(self) -> None:
        """Add kernels, and the binaries of the kernels that are added."""
        libraries = {row["id"]: row for row in self._snapshot["library"]}
        known_libraries = self._known("library")
        libraries_here = {row["id"]: row for row in known_libraries.values()}
        known = self._known("kernel")
        compiled = self._compiled(known.values(), libraries_here)
        for original in self._snapshot["kernel"]:
            row, library = dict(original), libraries.get(original["library_id"])
            other = known.get(natural_key("kernel", row))
            if library:
                key = compiled_key(row, library)
                if other and other["library_id"] and key != compiled_key(other, libraries_here[other["library_id"]]):
                    self._outcome.others.append(f"{row['family']} {row['config']}: {library['compiler']}")
                    row["source"] = key[-1]
                    other = known.get(natural_key("kernel", row))
                other = compiled.get(key, other)
            if library is None or (other and other["library_id"]):
                self._match_or_add("kernel", row, other)
                continue
            if library["id"] not in self._ids["library"]:
                self._match_or_add("library", library, known_libraries.get(natural_key("library", library)))
            library_id = self._new_id("library", library["id"])
            libraries_here[library_id] = library
            if other is None:
                self._match_or_add("kernel", row, None)
            else:
                self._ids["kernel"][row["id"]] = other["id"]
                columns = {name: row[name] for name in ("symbol", "weight_layouts", "launch_names", "digest")}
                self._update("kernel", other["id"], {**columns, "error": None, "library_id": library_id})
                self._outcome.known["kernel"] += 1
            compiled[key] = {**row, "id": self._new_id("kernel", row["id"]), "library_id": library_id}

    def _compiled(self, kernels: Iterable[Row], libraries: Mapping[int, Row]) -> dict[tuple[object, ...], Row]:
        """Return the kernels of the database that were compiled, by `compiled_key`, and note those that it has twice.

        Args:
            kernels: All kernels of the database.
            libraries: Its libraries by id.
        """
        found: dict[tuple[object, ...], Row] = {}
        for row in kernels:
            if row["library_id"]:
                first = found.setdefault(compiled_key(row, libraries[row["library_id"]]), row)
                if first is not row:
                    self._twins[row["id"]] = first["id"]
        return found

    def _add_by_content(self, table: str) -> None:
        """Add rows that are identified by their content. A row that one database has twice is kept twice."""
        here = Counter(content(with_new_ids(table, without_id(row), self._first_twin)) for row in self._rows(table))
        new = []
        for row in self._snapshot[table]:
            own = with_new_ids(table, without_id(row), self._new_id)
            text = content(own)
            if here[text] > 0:
                here[text] -= 1
                self._outcome.known[table] += 1
            else:
                new.append(own)
        if new:
            self._session.execute(sa.insert(Base.metadata.tables[table]), new)
        self._outcome.added[table] += len(new)

    def _match_or_add(self, table: str, row: Row, other: Row | None) -> None:
        """Map a row of the snapshot to the row `other` of the database, or add it if there is none."""
        if other is None:
            own = with_new_ids(table, without_id(row), self._new_id)
            done = self._session.execute(sa.insert(Base.metadata.tables[table]).values(own))
            self._ids[table][row["id"]] = done.inserted_primary_key[0]  # type: ignore[attr-defined]
            self._outcome.added[table] += 1
        else:
            self._ids[table][row["id"]] = other["id"]
            self._outcome.known[table] += 1

    def _new_id(self, table: str, old: int) -> int:
        return self._ids[table][old]

    def _first_twin(self, table: str, own: int) -> int:
        return self._twins.get(own, own) if table == "kernel" else own

    def _update(self, table: str, row_id: int, values: Row) -> None:
        columns = Base.metadata.tables[table]
        self._session.execute(sa.update(columns).where(columns.c.id == row_id).values(values))
        self._outcome.changed[table] += 1

    def _known(self, table: str) -> dict[tuple[object, ...], Row]:
        return {natural_key(table, row): row for row in self._rows(table)}

    def _rows(self, table: str) -> list[Row]:
        definition = Base.metadata.tables[table]
        columns = [column for column in definition.c if column.name != "blob"]
        return [dict(row) for row in self._session.execute(sa.select(*columns).order_by(definition.c.id)).mappings()]
