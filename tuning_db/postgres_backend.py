"""Databases on a PostgreSQL server, for tuners on several machines.

The address of a database is postgresql+psycopg://user@host/name.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import sqlalchemy as sa

from tuning_db.errors import DatabaseError, explained
from tuning_db.location import APPLICATION_ID, NOTICE_SECONDS, SCHEMA_VERSION, SCHEMAS
from tuning_db.schema import Base

_LOG = logging.getLogger(__name__)

_MARK = sa.Table("autotune_schema", sa.MetaData(), sa.Column("version", sa.Integer, nullable=False))
"""Marks a tuning database and holds its schema version, as the header of an SQLite file does."""


def engine_to_write(address: str, writing: str) -> sa.Engine:
    """Connect, and make the tables if they are missing.

    Args:
        address: The address of the database.
        writing: Name of the execution option that transactions which write have set.
    """
    engine = _engine(address, {})

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # One writer at a time, as in a file: no other writer changes what it has read.
        if connection.get_execution_options().get(writing):
            notice = threading.Timer(NOTICE_SECONDS, _LOG.warning, (f"{name}: waiting for another process to write",))
            notice.start()
            try:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({APPLICATION_ID})")
            finally:
                notice.cancel()

    name = name_of(address)
    translated, options = explained(name, sa.exc.DBAPIError), {writing: True}
    with translated, engine.connect().execution_options(**options) as connection, connection.begin():
        version = _version(connection)
        if version is None:
            _MARK.create(connection)
            Base.metadata.create_all(connection)
            connection.execute(sa.insert(_MARK).values(version=SCHEMA_VERSION))
        elif version in SCHEMAS:
            Base.metadata.create_all(connection)  # the tables that a database of an older version lacks
            connection.execute(sa.update(_MARK).values(version=SCHEMA_VERSION))
    _check(name, version or SCHEMA_VERSION)
    return engine


def engine_to_read(address: str) -> sa.Engine:
    """Connect to a database for reading only; raises DatabaseError if there is none."""
    engine = _engine(address, {"options": "-c default_transaction_read_only=on"})
    name = name_of(address)
    with explained(name, sa.exc.DBAPIError), engine.connect() as connection:
        version = _version(connection)
    if version is None:
        raise DatabaseError(f"no tuning database at {name}: make one with `autotune tune --db {name}`")
    _check(name, version)
    return engine


def name_of(address: str) -> str:
    """Return the address without its password."""
    return _url(address).render_as_string(hide_password=True)


def _url(address: str) -> sa.URL:
    try:
        return sa.make_url(address)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise DatabaseError(
            f"not the address of a database: {error}; write postgresql+psycopg://user@host/name"
        ) from error


def _engine(address: str, arguments: dict[str, Any]) -> sa.Engine:
    try:
        url = _url(address)
        if url.get_backend_name() != "postgresql":
            raise DatabaseError(f"{name_of(address)}: name a file, or a server as postgresql+psycopg://user@host/name")
        # Connect again if the server was restarted between two trials, instead of ending the run.
        return sa.create_engine(url, connect_args=arguments, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise DatabaseError(f"{name_of(address)} needs {error.name}: pip install 'psycopg[binary]'") from error


def _version(connection: sa.Connection) -> int | None:
    if not sa.inspect(connection).has_table(_MARK.name):
        return None
    return connection.scalar(sa.select(_MARK.c.version))


def _check(name: str, version: int) -> None:
    if version not in SCHEMAS:
        raise DatabaseError(
            f"{name} has schema {version}, this version reads {SCHEMA_VERSION}: upgrade the package everywhere, or "
            "export it with the version that made it and import it into a new database"
        )
