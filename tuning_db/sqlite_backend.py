"""Databases in an SQLite file. Several processes of one machine may write it; readers never wait for writers."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa

from tuning_db.errors import DatabaseError, explained
from tuning_db.location import APPLICATION_ID, SCHEMA_VERSION, check, check_schema, connect, execute, has_tables
from tuning_db.schema import Base


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
        if connection.exec_driver_sql("PRAGMA application_id").scalar() == APPLICATION_ID:
            check_schema(path, int(connection.exec_driver_sql("PRAGMA user_version").scalar() or 0))
        else:
            Base.metadata.create_all(connection)
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
