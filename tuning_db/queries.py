"""The queries of a tuning database with SQLAlchemy, the transactions that they run in, and the engines of SQLite files.

Several processes of one machine may write an SQLite file; readers never wait for writers.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, joinedload

from tuning_db.errors import DatabaseError, explained
from tuning_db.location import APPLICATION_ID, SCHEMA_VERSION, check, check_schema, connect, execute, has_tables
from tuning_db.ranking import ranked
from tuning_db.schema import (
    Base,
    Device,
    Dictionary,
    Environment,
    Extract,
    KernelRow,
    Library,
    Measurement,
    NetworkRow,
    PlanRow,
    ProblemRow,
    columns,
)
from tuning_db.trust import digests
from tuning_db.trust.binaries import Unpacker
from tuning_db.trust.signature import Origin

if TYPE_CHECKING:
    from tuning_db import protocols

WRITING = "autotune_writing"
"""Execution option of transactions that write; the backends let only one of them run at a time."""


class Queries:
    """The rows of one database; all methods raise DatabaseError if it cannot be read.

    Args:
        name: Name of the database in messages.
        engine: Its connections.
        path: The file; None for a database on a server, which is trusted as its address is.
    """

    def __init__(self, name: str, engine: sa.Engine, path: Path | None) -> None:
        self.name, self._engine = name, engine
        self._origin = Origin.of(path, name) if path else Origin(name)
        self.session = Session(engine, expire_on_commit=False)
        self.unpacker = Unpacker(name, self._dictionary)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Begin a transaction that reads. Between two of them other processes may write."""
        with self._transaction(writing=False) as session:
            yield session

    @contextmanager
    def _transaction(self, writing: bool) -> Iterator[Session]:
        with explained(self.name, sa.exc.DBAPIError):
            try:
                if self.session.in_transaction():  # loading an attribute on demand has begun one
                    self.session.commit()
                self.session.connection(execution_options={WRITING: writing})
                yield self.session
                self.session.commit()
            except BaseException:
                self.session.rollback()
                raise

    def binary(self, library: protocols.Library) -> bytes:
        """Return the binary of a library; raises DatabaseError if it is damaged, or another user's native code."""
        self._origin.require_trust(library.kind)
        with self.reading():
            blob = self.session.scalars(sa.select(Library.blob).filter_by(id=library.id)).one()
        return self.unpacker.binary(blob, library.digest, library.size)

    def _dictionary(self, number: int) -> tuple[int, bytes] | None:
        """Return size and blob of a dictionary."""
        with self.reading():
            row = self.session.get(Dictionary, number)
        return (row.size, row.blob) if row else None

    def devices(self) -> list[Device]:
        """Return all devices."""
        return self._all(sa.select(Device).order_by(Device.id))

    def environments(self) -> list[Environment]:
        """Return all environments."""
        return self._all(sa.select(Environment).order_by(Environment.id))

    def device(self, name: str) -> Device | None:
        """Return a device by its name; None if it is not known."""
        with self.reading():
            return self.session.scalars(sa.select(Device).filter_by(name=name)).one_or_none()

    def kernels(self, target: str) -> list[KernelRow]:
        """Return all kernels for a target, also those that did not compile."""
        return self._all(sa.select(KernelRow).filter_by(target=target).options(joinedload(KernelRow.library)))

    def problems(self) -> list[ProblemRow]:
        """Return all problems."""
        return self._all(sa.select(ProblemRow).order_by(ProblemRow.id))

    def problem_texts(self) -> list[str]:
        """Return the texts of all problems."""
        return self._all(sa.select(ProblemRow.text).order_by(ProblemRow.id))

    def measurements(
        self, device: protocols.Device, problem: str, status: str | None = None, most: int | None = None
    ) -> list[Measurement]:
        """Return measurements of a problem (its text) on a device, the fastest first, those without a time last.

        Args:
            device: The device.
            problem: Text of the problem.
            status: Return only measurements with this status.
            most: Return at most this number of measurements.
        """
        query = (
            sa.select(Measurement)
            .join(ProblemRow)
            .where(Measurement.device_id == device.id, ProblemRow.text == problem)
            .options(joinedload(Measurement.kernel).joinedload(KernelRow.library))
            .order_by(Measurement.median_us.is_(None), Measurement.median_us, Measurement.id)
            .limit(most)
        )
        return self._all(query.where(Measurement.status == status) if status else query)

    def ranking(self, device: protocols.Device, problem: str) -> list[Measurement]:
        """Return the verified candidates for a problem (its text) on a device, best first, each once (ranking.py)."""
        return ranked(self.measurements(device, problem, "ok"))

    def best_us(self, device: protocols.Device, problem: str, kernel: KernelRow | None = None) -> float | None:
        """Return the shortest verified time of a problem on a device in microseconds, of one kernel or of all."""
        query = sa.select(sa.func.min(Measurement.median_us)).join(ProblemRow).where(ProblemRow.text == problem)
        query = query.where(Measurement.device_id == device.id)
        with self.reading():
            return self.session.scalar(query.where(Measurement.kernel_id == kernel.id) if kernel else query)

    def best_times(self, device: protocols.Device) -> dict[str, float]:
        """Return the shortest verified time in microseconds of each problem (its text) that has one on a device."""
        query = (
            sa.select(ProblemRow.text, sa.func.min(Measurement.median_us)).join(Measurement).group_by(ProblemRow.text)
        )
        query = query.where(Measurement.device_id == device.id)
        with self.reading():
            return {text: us for text, us in self.session.execute(query) if us is not None}

    def plan(self, device: protocols.Device, network: str) -> PlanRow | None:
        """Return the newest plan of a network on a device: network tuning starts from the older ones."""
        query = sa.select(PlanRow).filter_by(device_id=device.id, network=network).order_by(PlanRow.id.desc()).limit(1)
        with self.reading():
            return self.session.scalars(query).one_or_none()

    def planned(self, device: protocols.Device) -> list[str]:
        """Return the networks that have a plan on a device, in the order of their newest plans."""
        plans = sa.select(PlanRow.network).filter_by(device_id=device.id)
        return self._all(plans.group_by(PlanRow.network).order_by(sa.func.max(PlanRow.id)))

    def extracts(self) -> list[str]:
        """Return what the database keeps of what was measured; nothing if it holds all."""
        with self.reading():
            return list(self.session.scalars(sa.select(Extract.kept))) if self.has(Extract.__tablename__) else []

    def networks(self, start: str = "") -> list[tuple[str, str]]:
        """Return key and text of each network whose key starts with a text, the newest first.

        Raises:
            DatabaseError: A row is not as it was stored.
        """
        query = sa.select(NetworkRow).where(NetworkRow.key.startswith(start, autoescape=True))
        with self.reading():
            found = self.session.scalars(query.order_by(NetworkRow.id.desc())).all() if self.has("network") else []
        return [(row.key, digests.network_text(self.name, columns(row))) for row in found]

    def has(self, table: str) -> bool:
        """Return, within a transaction, whether there is a table; files of older versions lack some."""
        return sa.inspect(self.session.connection()).has_table(table)

    def plans(self) -> list[PlanRow]:
        """Return all plans."""
        return self._all(sa.select(PlanRow).order_by(PlanRow.id))

    def kernel(self, kernel_id: int) -> KernelRow:
        """Return a kernel by its id."""
        query = sa.select(KernelRow).filter_by(id=kernel_id).options(joinedload(KernelRow.library))
        with self.reading():
            return self.session.scalars(query).one()

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table, and of measurements by status."""
        with self.reading():
            present = sa.inspect(self.session.connection()).get_table_names()  # an older schema lacks some
            counts = {
                table.name: self.session.scalar(sa.select(sa.func.count()).select_from(table)) or 0
                for table in Base.metadata.sorted_tables
                if table.name in present
            }
            query = sa.select(Measurement.status, sa.func.count()).group_by(Measurement.status)
            return counts | {f"measurement: {status}": count for status, count in self.session.execute(query)}

    def _all(self, query: Any) -> list[Any]:
        with self.reading():
            return list(self.session.scalars(query).unique())


def engine_to_write(path: Path, writing: str) -> sa.Engine:
    """Open a file; make it, if needed.

    Args:
        path: The file. Its folder is made.
        writing: Name of the execution option that transactions which write have set.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(f"cannot make the folder of {path}: {error.strerror}") from error
    if path.exists():
        has_tables(path)  # raises for what is no database
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)))
    sa.event.listen(engine, "connect", lambda connection, _: _configure(connection, path))
    if isinstance(engine.pool.logger, logging.Logger):
        engine.pool.logger.addFilter(_no_interrupt)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        _begin(connection, path, bool(connection.get_execution_options().get(writing)))

    translated, options = explained(str(path), sa.exc.DBAPIError), {writing: True}
    with translated, engine.connect().execution_options(**options) as connection, connection.begin():
        # In one transaction: no process sees tables without the mark. Another process may have made them meanwhile.
        version = int(connection.exec_driver_sql("PRAGMA user_version").scalar() or 0)
        if is_known := connection.exec_driver_sql("PRAGMA application_id").scalar() == APPLICATION_ID:
            check_schema(path, version)
        Base.metadata.create_all(connection)  # also the tables that a file of an older version lacks
        if not is_known or version < SCHEMA_VERSION:
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
    return engine


def _no_interrupt(record: logging.LogRecord) -> bool:
    """Drop the pool's log entry of a Ctrl-C within a transaction: it is rolled back, and raised to its handler."""
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


def engine_to_read(path: Path) -> sa.Engine:
    """Open a file for reading only, also in a read-only folder."""
    check(path)

    def connected() -> sqlite3.Connection:
        connection = connect(path)
        connection.isolation_level = None  # SQLAlchemy's event begins transactions
        return connection

    engine = sa.create_engine("sqlite://", creator=connected, poolclass=sa.NullPool)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        _begin(connection, path, writing=False)

    return engine


def _begin(connection: sa.Connection, path: Path, writing: bool) -> None:
    """Begin a transaction, and lock the file.

    Without it sqlite3 begins no transaction to read, and each query sees what was written since the last one.
    """
    raw = connection.connection.driver_connection
    assert raw
    if writing:
        execute(raw, path, "BEGIN IMMEDIATE")  # at once: no other writer changes what it has read
    else:
        raw.execute("BEGIN")
        execute(raw, path, "SELECT 1 FROM sqlite_master LIMIT 1")  # BEGIN alone locks nothing


def close_writer(engine: sa.Engine) -> None:
    """Close a file that was written. It is left as one file that can be copied, unless others still have it open."""
    with suppress(sa.exc.DatabaseError, sqlite3.Error), engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw
        raw.rollback()
        raw.execute("PRAGMA journal_mode = DELETE")
    engine.dispose()


def _configure(connection: sqlite3.Connection, path: Path) -> None:
    # SQLAlchemy's event begins transactions, not sqlite3, so that a writer locks the file when it begins.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    # A write-ahead log: a commit needs no flush, and readers do not wait for writers.
    execute(connection, path, "PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
