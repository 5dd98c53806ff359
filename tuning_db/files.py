"""Databases in a file: SQLite. Several processes of one machine may write it at once; readers do not wait."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import sqlalchemy as sa

from tuning_db.errors import DatabaseError, explained
from tuning_db.migration import shadow, upgrade
from tuning_db.schema import APPLICATION_ID, SCHEMA_VERSION, Base

PATIENCE = 60.0
"""Seconds to wait for another process's write."""


def engine_to_write(path: Path, writing: str) -> sa.Engine:
    """Open a file, made or brought to the present schema if need be. writing: the option of transactions that write."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(f"cannot make the folder of {path}: {error.strerror}") from error
    if path.exists() and path.stat().st_size:
        schema_of(path)
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": PATIENCE})
    sa.event.listen(engine, "connect", _configure)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:  # a writer takes its turn at once: what it read stays true
        turn = " IMMEDIATE" if connection.get_execution_options().get(writing) else ""
        connection.exec_driver_sql(f"BEGIN{turn}")

    with explained(str(path)), engine.connect().execution_options(**{writing: True}) as connection, connection.begin():
        # All at once: nobody sees tables without the mark. Another process may have been here while we waited.
        marked = connection.exec_driver_sql("PRAGMA application_id").scalar() == APPLICATION_ID
        version = connection.exec_driver_sql("PRAGMA user_version").scalar() if marked else SCHEMA_VERSION
        Base.metadata.create_all(connection)
        upgrade(connection, version or SCHEMA_VERSION)
        if not marked or version != SCHEMA_VERSION:
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
    return engine


def engine_to_read(path: Path) -> sa.Engine:
    """Open a file that is not to be written, also in a read-only place, and also one of an older schema."""
    if not path.is_file():
        raise DatabaseError(f"no tuning database at {path}: make one with scripts/tune.py --db {path}")
    version = schema_of(path)
    if version is None:
        raise DatabaseError(f"{path} is empty: tuning it was stopped before it began; run scripts/tune.py --db {path}")

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(_address(path), uri=True, timeout=PATIENCE)
        if version < SCHEMA_VERSION:
            shadow(connection, version)
        return connection

    return sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)


def leave(engine: sa.Engine) -> None:
    """Close a file that was written: one piece, ready to be copied, unless others still have it open."""
    with suppress(sa.exc.DatabaseError, sqlite3.Error), engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw
        raw.rollback()
        raw.execute("PRAGMA journal_mode = DELETE")
    engine.dispose()


def schema_of(path: Path) -> int | None:
    """The schema of a tuning database; None for an SQLite file without any table; DatabaseError for anything else."""
    try:
        with path.open("rb") as file:
            header = file.read(16)
    except OSError as error:
        raise DatabaseError(f"cannot read {path}: {error.strerror}") from error
    if header != b"SQLite format 3\0":
        raise DatabaseError(f"{path} is not a tuning database: it is not an SQLite file")
    with explained(str(path)), closing(sqlite3.connect(_address(path), uri=True, timeout=PATIENCE)) as connection:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not application and not tables:
        return None
    if application != APPLICATION_ID:
        raise DatabaseError(f"{path} is an SQLite file, but not a tuning database")
    if version > SCHEMA_VERSION:
        raise DatabaseError(
            f"{path} has schema {version}, newer than the {SCHEMA_VERSION} that this version reads: upgrade the package"
        )
    return version


def _address(path: Path) -> str:
    # In a folder that is read-only SQLite must not try to make a lock beside the file. Where there is a log, its writer
    # lives or was killed: then SQLite has what it needs to read it.
    log = path.with_name(f"{path.name}-wal")
    frozen = "" if os.access(path.parent, os.W_OK) or log.exists() else "&immutable=1"
    return f"{path.resolve().as_uri()}?mode=ro{frozen}"


def _configure(connection: sqlite3.Connection, _: object) -> None:
    # Transactions are begun by SQLAlchemy's event, not by sqlite3, so that writers wait for each other in order.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous = NORMAL")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Log writes ahead: a commit costs no flush, and readers do not wait. SQLite itself would not wait for its turn."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
