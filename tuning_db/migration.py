"""Migrates files of older schemas to the present one: in the file if it is written, by views if it is only read.

A newer schema is refused. An older one loses nothing, because every change so far adds tables or nullable columns.
"""

from __future__ import annotations

import sqlite3

import sqlalchemy as sa
from sqlalchemy.schema import CreateTable

from tuning_db.launch import RECORDED_NAMES
from tuning_db.schema import Base

_MEASURED = {"recorded": "VARCHAR", "environment_id": "INTEGER REFERENCES environment (id)"}
ADDED_COLUMNS = {2: {"measurement": _MEASURED, "plan": _MEASURED}, 3: {"kernel": {"launch_names": "JSON"}}}
VALUES = {("kernel", "launch_names"): RECORDED_NAMES.format(kernel="kernel")}
"""SQL of an added column's values in old rows; NULL without one."""
ADDED_TABLES = {2: ("environment", "claim")}


def upgrade(connection: sa.Connection, version: int) -> None:
    """Add the columns that a file of schema `version` lacks, in the caller's transaction.

    New tables are made by SQLAlchemy's create_all.
    """
    for table, columns in _lacking(version).items():
        for name, kind in columns.items():
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
            if (table, name) in VALUES:
                connection.exec_driver_sql(f"UPDATE {table} SET {name} = {VALUES[table, name]}")


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
