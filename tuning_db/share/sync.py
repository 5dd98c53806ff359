"""Keeps two databases in step: each gets what only the other has, pass by pass, also while tuners write to them.

A pass reads both databases and merges what it has read into the other one. It adds nothing twice, because merging
recognises rows by their content (merge.py). A database that lacks nothing is not written, and a pass reads only a few
columns if neither database has changed since a pass that moved nothing. Binaries that a database has are not sent to
it.

plans_in_step.py says which plan of a network both databases use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from tuning_db import remote
from tuning_db.errors import DatabaseError
from tuning_db.location import Location, is_address, is_remote
from tuning_db.schema import RATES, Base, Device, KernelRow, Library
from tuning_db.share.merge import merge_rows
from tuning_db.share.plans_in_step import Plans, lacking, newest, put_last, remove, without_replaced
from tuning_db.share.snapshot import TABLES, Snapshot, comparable_rows, read
from tuning_db.store import Store

State = list[object]
"""Numbers of rows, newest ids and changeable columns of a database: equal states have equal content."""

_COMPARED = [table for table in TABLES if table != "library"]
"""Tables that are compared. A database that lacks no kernel lacks no binary: where a kernel is in two binaries that are
compiled in the same way, each database keeps its own one."""


@dataclass(frozen=True)
class Moved:
    """Number of rows that a pass added to each database, or changed there."""

    to_first: int = 0
    to_second: int = 0

    @property
    def any(self) -> bool:
        """True if a database was changed."""
        return bool(self.to_first or self.to_second)


class Sync:
    """Two databases that are kept in step. It holds no connection between two passes.

    Args:
        first: A file, which is made if it is missing, or a database on a server.
        second: The same.

    Attributes:
        names: The names of both, without passwords.

    Raises:
        DatabaseError: The two are one, or one of them cannot be written.
    """

    def __init__(self, first: Location, second: Location) -> None:
        for place in (first, second):
            if is_remote(place):
                raise remote.refused(place)
        self._places = (first, second)
        self.names = (_name(first), _name(second))
        if _identity(first) == _identity(second):
            raise DatabaseError(f"{self.names[0]} is named twice: name two databases to keep in step")
        self._exist = False  # whether both are known to have tables
        self._plans: frozenset[str] = frozenset()  # digests of the plans that both had after the last pass
        self._settled: list[State] = []  # the states of both before a pass that moved nothing

    def run_pass(self) -> Moved:
        """Add to each database what only the other has, and return how much that was.

        Raises:
            DatabaseError: A database cannot be read or written, or the two contradict each other. What one of them
                lacks then is added by a later pass.
        """
        if not self._exist:
            self._make_missing()
            self._exist = True
        first, second = self._places
        with Store.open(first) as one, Store.open(second) as other:
            states = [_state(one), _state(other)]
            if states == self._settled:
                return Moved()
            held = _binaries(one), _binaries(other)
            parts = read(one, known=held[1]), read(other, known=held[0])
        replaced = without_replaced(parts, self._plans)
        last = newest(*parts)
        to_second = _bring(second, parts[1], parts[0], replaced[1], last)
        to_first = _bring(first, parts[0], parts[1], replaced[0], last)
        self._plans = frozenset(row["digest"] for part in parts for row in part["plan"])
        moved = Moved(to_first, to_second)
        self._settled = [] if moved.any else states
        return moved

    def _make_missing(self) -> None:
        """Make a database that is missing; raises DatabaseError if both are."""
        missing = [place for place in self._places if not is_address(place) and not Path(place).exists()]
        if len(missing) == len(self._places):
            raise DatabaseError(
                f"there is neither {missing[0]} nor {missing[1]}: make one with `autotune tune --db FILE`"
            )
        for place in sorted(self._places, key=missing.__contains__):  # the existing one first, which may be unreachable
            (Store.create if is_address(place) or place in missing else Store.open)(place).close()


def _name(place: Location) -> str:
    if is_address(place):
        from tuning_db import postgres_backend

        return postgres_backend.name_of(place)
    return str(place)


def _identity(place: Location) -> str:
    return place if is_address(place) else str(Path(place).resolve())


def _state(store: Store) -> State:
    """Return what changes whenever rows of a snapshot are added, changed or removed; claims do not count."""
    with store.reading() as session:
        tables = [Base.metadata.tables[name] for name in TABLES if store.has(name)]
        counts = [tuple(session.execute(sa.select(sa.func.count(), sa.func.max(table.c.id))).one()) for table in tables]
        kernels = session.execute(sa.select(KernelRow.id, KernelRow.source, KernelRow.digest).order_by(KernelRow.id))
        devices = session.execute(sa.select(Device.id, Device.flops_per_us, Device.bytes_per_us).order_by(Device.id))
        return [counts, list(map(tuple, kernels)), list(map(tuple, devices))]


def _binaries(store: Store) -> set[str]:
    """Return the digests of the binaries that a database has."""
    with store.reading() as session:
        return set(session.scalars(sa.select(Library.digest)))


def _bring(place: Location, own: Snapshot, others: Snapshot, replaced: Sequence[str], last: Plans) -> int:
    """Write to a database what it lacks, and return the number of rows that were added or changed.

    Args:
        place: The database.
        own: Its content as it was read.
        others: The content of the other database.
        replaced: Digests of its plans to remove.
        last: The newest plan of each network and device.
    """
    if not (replaced or _lacks(own, others) or newest(own) != last):
        return 0
    wanted = {**others, "plan": lacking(own, others)}
    with Store.create(place) as store, store.writing() as session:
        removed = remove(session, replaced)
        outcome = merge_rows(session, wanted, store.name)
        known = {row["digest"] for part in (own, others) for row in part["plan"]}
        moved = put_last(session, last, known)
    return removed + outcome.added.total() + outcome.changed.total() + moved


def _lacks(own: Snapshot, others: Snapshot) -> bool:
    """Return whether a database lacks a row of another one, or a higher limit of a device."""
    for table in _COMPARED:
        if Counter(comparable_rows(others, table)) - Counter(comparable_rows(own, table)):
            return True
    limits = {row["name"]: row for row in own["device"]}
    return any(row[name] > limits[row["name"]][name] for row in others["device"] for name in RATES)
