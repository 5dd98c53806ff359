"""Databases in a file: SQLite. Several processes of one machine may write it at once; readers do not wait."""

from __future__ import annotations

import logging
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa

from tuning_db.errors import DatabaseError, explained
from tuning_db.location import APPLICATION_ID, PATIENCE, SCHEMA_VERSION, check, connect, schema_of
from tuning_db.migration import shadow, upgrade
from tuning_db.schema import Base


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
    if isinstance(engine.pool.logger, logging.Logger):
        engine.pool.logger.addFilter(_no_interrupt)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:  # a writer takes its turn at once: what it read stays true
        turn = " IMMEDIATE" if connection.get_execution_options().get(writing) else ""
        connection.exec_driver_sql(f"BEGIN{turn}")

    told, options = explained(str(path), sa.exc.DBAPIError), {writing: True}
    with told, engine.connect().execution_options(**options) as connection, connection.begin():
        # All at once: nobody sees tables without the mark. Another process may have been here while we waited.
        marked = connection.exec_driver_sql("PRAGMA application_id").scalar() == APPLICATION_ID
        version = connection.exec_driver_sql("PRAGMA user_version").scalar() if marked else SCHEMA_VERSION
        Base.metadata.create_all(connection)
        upgrade(connection, version or SCHEMA_VERSION)
        if not marked or version != SCHEMA_VERSION:
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
    return engine


def _no_interrupt(record: logging.LogRecord) -> bool:
    """Of what the pool logs, all but Ctrl-C amid a transaction: that is rolled back, and raised to its handler."""
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


def engine_to_read(path: Path) -> sa.Engine:
    """Open a file that is not to be written, also in a read-only place, and also one of an older schema."""
    version = check(path)

    def connected() -> sqlite3.Connection:
        connection = connect(path)
        if version < SCHEMA_VERSION:
            shadow(connection, version)
        return connection

    return sa.create_engine("sqlite://", creator=connected, poolclass=sa.NullPool)


def leave(engine: sa.Engine) -> None:
    """Close a file that was written: one piece, ready to be copied, unless others still have it open."""
    with suppress(sa.exc.DatabaseError, sqlite3.Error), engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw
        raw.rollback()
        raw.execute("PRAGMA journal_mode = DELETE")
    engine.dispose()


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
