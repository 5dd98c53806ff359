"""Opens a tuning database and answers the questions that tuner, runtime and scripts ask of it."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, joinedload

from autotune.errors import AutotuneError
from tuning_db.schema import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    Base,
    Device,
    KernelRow,
    Library,
    Measurement,
    PlanRow,
    ProblemRow,
)
from tuning_db.ties import by_choice

_PATIENCE = 60.0  # seconds to wait for another process's write


class DatabaseError(AutotuneError):
    """A database that cannot be read, written or trusted."""


class Store:
    """One database file.

    Store.create(path) opens it for tuning and makes it if it is not there; Store.open(path) opens it for reading
    only, also from a read-only place. Every write is committed when its method returns. Use it as a context manager.
    """

    def __init__(self, path: Path, engine: sa.Engine, writable: bool) -> None:
        self.path = path
        self._writable = writable
        self._engine = engine
        self.session = Session(engine, expire_on_commit=False)

    # -- opening ---------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Store:
        """Open for reading and writing; raises DatabaseError for a foreign, newer, corrupted or unwritable file."""
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatabaseError(f"cannot make the folder of {path}: {error.strerror}") from error
        new = not path.exists() or path.stat().st_size == 0
        if not new:
            _check_file(path)
        engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": _PATIENCE})
        sa.event.listen(engine, "connect", _configure)
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        with _explained(path), engine.begin() as connection:  # all at once: nobody sees tables without the mark
            Base.metadata.create_all(connection)
            if new:
                connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
        return cls(path, engine, writable=True)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Store:
        """Open for reading only; raises DatabaseError, also if there is no such file."""
        path = Path(path)
        if not path.is_file():
            raise DatabaseError(f"no tuning database at {path}: make one with scripts/tune.py --db {path}")
        _check_file(path)
        # Where the folder is read-only nobody can be writing, and SQLite must not try to make a lock beside the file.
        frozen = "" if os.access(path.parent, os.W_OK) else "&immutable=1"
        address = f"{path.resolve().as_uri()}?mode=ro{frozen}"
        engine = sa.create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(address, uri=True, timeout=_PATIENCE), poolclass=sa.NullPool
        )
        return cls(path, engine, writable=False)

    def compact(self) -> None:
        """Give the room of deleted rows back to the file system."""
        self.session.close()
        with _explained(self.path), self._engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw
            raw.rollback()
            raw.execute("VACUUM")

    def close(self) -> None:
        """Close; a file opened for writing is left in one piece, ready to be copied, unless others still write it."""
        self.session.close()
        if self._writable:
            with suppress(sa.exc.DatabaseError, sqlite3.Error), self._engine.connect() as connection:
                raw = connection.connection.driver_connection
                assert raw
                raw.rollback()
                raw.execute("PRAGMA journal_mode = DELETE")
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing ---------------------------------------------------------------------------------------------

    def put_device(self, name: str, target: str, **values: Any) -> Device:
        """Find a device by name, or record it. values: flops_per_us, bytes_per_us, details."""
        return self._find_or_add(Device, {"name": name}, {"target": target, **values})

    def put_problem(self, text: str) -> ProblemRow:
        """Find a problem by its text, or record it."""
        return self._find_or_add(ProblemRow, {"text": text}, {"operator": text.split(maxsplit=1)[0]})

    def put_kernel(self, identity: dict[str, str], **values: Any) -> KernelRow:
        """Find a kernel by identity (family, config, dtype, epilogue, target, source), or record it.

        values: symbol, weight_layouts, library_id, error. A kernel that had failed to compile takes the new values.
        """
        row = self._find_or_add(KernelRow, identity, values)
        if row.error and not values.get("error"):
            with self._transaction():
                row.error, row.library_id = None, values.get("library_id")
        return row

    def put_library(self, binary: bytes, **values: Any) -> Library:
        """Find a binary by its digest, or store it. values: kind, target, compiler, flags, cutlass, abi_version."""
        digest = hashlib.sha256(binary).hexdigest()
        blob = zlib.compress(binary, 6)
        return self._find_or_add(Library, {"digest": digest}, {**values, "size": len(binary), "blob": blob})

    def put_measurement(self, **values: Any) -> Measurement:
        """Record a measurement; values are the columns of `Measurement`."""
        with self._transaction():
            row = Measurement(**values)
            self.session.add(row)
        return row

    def put_plan(self, **values: Any) -> PlanRow:
        """Record a timed network; values are the columns of `PlanRow`."""
        with self._transaction():
            row = PlanRow(**values)
            self.session.add(row)
        return row

    def _find_or_add(self, table: Any, key: dict[str, Any], values: dict[str, Any]) -> Any:
        with self._transaction():
            row = self.session.scalars(sa.select(table).filter_by(**key)).one_or_none()
            if row is None:
                row = table(**key, **values)
                self.session.add(row)
        return row

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Every read or write is a transaction of its own: between calls the file is free for others."""
        with _explained(self.path):
            try:
                yield
                self.session.commit()
            except BaseException:
                self.session.rollback()
                raise

    # -- reading ---------------------------------------------------------------------------------------------

    def binary(self, library: Library) -> bytes:
        """The binary of a library; raises DatabaseError if it is not what its digest says."""
        with self._transaction():
            try:
                binary = zlib.decompress(library.blob)
            except zlib.error:
                binary = b""
        if hashlib.sha256(binary).hexdigest() != library.digest:
            raise DatabaseError(f"{self.path}: binary {library.digest[:12]} is damaged; tune again or restore the file")
        return binary

    def devices(self) -> list[Device]:
        """All devices that measured."""
        return self._all(sa.select(Device).order_by(Device.id))

    def device(self, name: str) -> Device | None:
        """A device by name."""
        with self._transaction():
            return self.session.scalars(sa.select(Device).filter_by(name=name)).one_or_none()

    def kernels(self, target: str) -> list[KernelRow]:
        """All kernels for a target, compiled or not."""
        return self._all(sa.select(KernelRow).filter_by(target=target).options(joinedload(KernelRow.library)))

    def problems(self) -> list[ProblemRow]:
        """All problems."""
        return self._all(sa.select(ProblemRow).order_by(ProblemRow.id))

    def measurements(self, device: Device, problem: str, status: str | None = None) -> list[Measurement]:
        """Measurements of a problem (its text) on a device, the fastest first, those without a time last."""
        query = (
            sa.select(Measurement)
            .join(ProblemRow)
            .where(Measurement.device_id == device.id, ProblemRow.text == problem)
            .options(joinedload(Measurement.kernel).joinedload(KernelRow.library))
            .order_by(Measurement.median_us.is_(None), Measurement.median_us)
        )
        return self._all(query.where(Measurement.status == status) if status else query)

    def ranking(self, device: Device, problem: str, finals_first: bool = True) -> list[Measurement]:
        """Verified candidates for a problem on a device, best first, each once.

        Finalists, which were timed in interleaved rounds, come before all others: their times compare fairly. Those
        that are tied with the fastest stand in the order of choice.
        """
        best: dict[tuple[int, str], Measurement] = {}
        timed = self.measurements(device, problem, "ok")
        for row in sorted(timed, key=lambda row: (finals_first and not row.final, row.median_us)):
            best.setdefault((row.kernel_id, str(row.launch)), row)
        return by_choice(list(best.values())) if finals_first else list(best.values())

    def best_us(self, device: Device, problem: str) -> float | None:
        """The shortest verified time of a problem on a device, in microseconds."""
        query = sa.select(sa.func.min(Measurement.median_us)).join(ProblemRow)
        with self._transaction():
            return self.session.scalar(query.where(Measurement.device_id == device.id, ProblemRow.text == problem))

    def is_measured(self, device: Device, problem: str, kernel: KernelRow) -> bool:
        """Whether a kernel was tried on a problem (its text) on a device, whatever came of it."""
        query = sa.select(Measurement.id).join(ProblemRow).where(ProblemRow.text == problem)
        mine = query.where(Measurement.device_id == device.id, Measurement.kernel_id == kernel.id).limit(1)
        with self._transaction():
            return self.session.scalar(mine) is not None

    def plan(self, device: Device, network: str) -> PlanRow | None:
        """The newest plan of a network on a device: it started from all that was known before."""
        query = sa.select(PlanRow).filter_by(device_id=device.id, network=network).order_by(PlanRow.id.desc()).limit(1)
        with self._transaction():
            return self.session.scalars(query).one_or_none()

    def plans(self) -> list[PlanRow]:
        """All plans."""
        return self._all(sa.select(PlanRow).order_by(PlanRow.id))

    def kernel(self, kernel_id: int) -> KernelRow:
        """A kernel by its number."""
        query = sa.select(KernelRow).filter_by(id=kernel_id).options(joinedload(KernelRow.library))
        with self._transaction():
            return self.session.scalars(query).one()

    def counts(self) -> dict[str, int]:
        """Rows of each table, and measurements by status."""
        with self._transaction():
            counts = {
                table.name: self.session.scalar(sa.select(sa.func.count()).select_from(table)) or 0
                for table in Base.metadata.sorted_tables
            }
            query = sa.select(Measurement.status, sa.func.count()).group_by(Measurement.status)
            return counts | {f"measurement: {status}": count for status, count in self.session.execute(query)}

    def _all(self, query: Any) -> list[Any]:
        with self._transaction():
            return list(self.session.scalars(query).unique())


def _configure(connection: sqlite3.Connection, _: object) -> None:
    # Transactions are begun by SQLAlchemy's event, not by sqlite3, so that writers wait for each other in order.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous = NORMAL")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Log writes ahead: a commit costs no flush, and readers do not wait. SQLite itself would not wait for its turn."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _check_file(path: Path) -> None:
    """Raise DatabaseError unless `path` is a tuning database of a schema that this code reads."""
    try:
        with path.open("rb") as file:
            header = file.read(16)
        if header != b"SQLite format 3\0":
            raise DatabaseError(f"{path} is not a tuning database: it is not an SQLite file")
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_PATIENCE)
        try:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
        finally:
            connection.close()
    except OSError as error:
        raise DatabaseError(f"cannot read {path}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise DatabaseError(f"cannot read {path}: {error}") from error
    if application != APPLICATION_ID:
        raise DatabaseError(f"{path} is an SQLite file, but not a tuning database")
    if version > SCHEMA_VERSION:
        raise DatabaseError(
            f"{path} has schema {version}, newer than the {SCHEMA_VERSION} that this version reads: upgrade the package"
        )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into one sentence about the file."""
    try:
        yield
    except sa.exc.DatabaseError as error:
        text = str(error.orig)
        advice = {
            "disk is full": "free some space and run again: what was committed is safe",
            "readonly": "make the file and its folder writable, or name another with --db",
            "locked": "another process holds it: wait for that to end",
            "malformed": "it is corrupted: restore it from a copy, or start a new one",
            "not a database": "it is corrupted: restore it from a copy, or start a new one",
            "unable to open": "check that its folder exists and is writable",
        }
        hint = next(
            (hint for sign, hint in advice.items() if sign in text), "it does not fit this version: start a new one"
        )
        raise DatabaseError(f"{path}: {text}; {hint}") from error
