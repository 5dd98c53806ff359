"""Migrates files of older schemas to the present one: in the file if it is written, by views if it is only read.

A newer schema is refused. An older one loses nothing, because every change so far adds tables or nullable columns.
Digests of rows are computed from the rows; the views of a file that is only read have none.
"""

from __future__ import annotations

import sqlite3

import sqlalchemy as sa
from sqlalchemy.schema import CreateTable

from tuning_db import row_digests
from tuning_db.errors import DatabaseError
from tuning_db.launch import RECORDED_NAMES
from tuning_db.schema import Base

_MEASURED = {"recorded": "VARCHAR", "environment_id": "INTEGER REFERENCES environment (id)"}
_DIGEST = {"digest": "VARCHAR"}
ADDED_COLUMNS = {
    2: {"measurement": _MEASURED, "plan": _MEASURED},
    3: {"kernel": {"launch_names": "JSON"}},
    4: {"kernel": _DIGEST, "measurement": _DIGEST, "plan": _DIGEST},
}
VALUES = {("kernel", "launch_names"): RECORDED_NAMES.format(kernel="kernel")}
"""SQL of an added column's values in old rows; NULL without one."""
ADDED_TABLES = {2: ("environment", "claim"), 4: ("signature",)}


def upgrade(connection: sa.Connection, version: int, name: str) -> None:
    """Add the columns that a file of schema `version` lacks, in the caller's transaction.

    New tables are made by SQLAlchemy's create_all.

    Args:
        connection: The file.
        version: Its schema.
        name: Its name, for the message of a DatabaseError if a row does not hold what the schema says.
    """
    for table, columns in _lacking(version).items():
        for column, kind in columns.items():
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
            if (table, column) in VALUES:
                connection.exec_driver_sql(f"UPDATE {table} SET {column} = {VALUES[table, column]}")
    if version < row_digests.SINCE:
        add_digests(connection, name)


def add_digests(connection: sa.Connection, name: str) -> None:
    """Check the digests of rows, and store those that are missing; raises DatabaseError as `row_digests.fill` does."""
    tables = {}
    for table in ("device", "problem", "library", "kernel", "measurement", "plan"):
        definition = Base.metadata.tables[table]
        query = sa.select(*(column for column in definition.c if column.name != "blob"))
        try:
            tables[table] = [dict(row) for row in connection.execute(query).mappings()]
        except row_digests.UNREADABLE as error:
            raise DatabaseError(f"{name}: a row of table '{table}' is damaged: restore the file from a copy") from error
    row_digests.fill(name, tables)
    for table in ("kernel", "measurement", "plan"):
        definition = Base.metadata.tables[table]
        change = sa.update(definition).where(definition.c.id == sa.bindparam("row")).values(digest=sa.bindparam("made"))
        if made := [{"row": row["id"], "made": row["digest"]} for row in tables[table]]:
            connection.execute(change, made)


def shadow(connection: sqlite3.Connection, version: int) -> None:
    """Make a file of schema `version` look like the present schema, without writing it: temporary views hide tables."""
    connection.execute("PRAGMA temp_store = MEMORY")
    for table, columns in _lacking(version).items():
        added = "".join(f", {VALUES.get((table, name), 'NULL')} AS {name}" for name in columns)
        connection.execute(f"CREATE TEMP VIEW {table} AS SELECT *{added} FROM main.{table}")
    for since, tables in ADDED_TABLES.items():
        for table in tables if version < since else ():
            made = str(CreateTable(Base.metadata.tables[table]))
            connection.execute(made.replace("CREATE TABLE", "CREATE TEMP TABLE"))


def _lacking(version: int) -> dict[str, dict[str, str]]:
    lacking: dict[str, dict[str, str]] = {}
    for since, tables in ADDED_COLUMNS.items():
        for table, columns in tables.items() if version < since else ():
            lacking.setdefault(table, {}).update(columns)
    return lacking
