"""Where a database lies: on a server, by its address, or in a file, and how a file says that it is one."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TypeGuard

from tuning_db.errors import DatabaseError, explained

Location = str | os.PathLike[str]
"""A file, or the address of a server: postgresql+psycopg://user@host/name."""

APPLICATION_ID = 0x6B746462
"""SQLite's application_id: marks the file as a tuning database."""

SCHEMA_VERSION = 2
"""Counts the changes of tuning_db/schema.py; a file keeps it as SQLite's user_version, a server in a table.

1: as first published. 2: environments, times of recording, claims. tuning_db/migration.py leads from 1 to 2."""

PATIENCE = 60.0
"""Seconds to wait for another process's write."""


def is_address(where: Location) -> TypeGuard[str]:
    """Whether a location is a server's address, not a file."""
    return isinstance(where, str) and "://" in where


def check(path: Path) -> int:
    """The schema of a file that is to be read; raises DatabaseError where there is none, or nothing in it."""
    if not path.is_file():
        raise DatabaseError(f"no tuning database at {path}: make one with scripts/tune.py --db {path}")
    version = schema_of(path)
    if version is None:
        raise DatabaseError(f"{path} is empty: tuning it was stopped before it began; run scripts/tune.py --db {path}")
    return version


def schema_of(path: Path) -> int | None:
    """The schema of a tuning database; None for an SQLite file without any table; DatabaseError for anything else."""
    try:
        with path.open("rb") as file:
            header = file.read(16)
    except OSError as error:
        raise DatabaseError(f"cannot read {path}: {error.strerror}") from error
    if header != b"SQLite format 3\0":
        raise DatabaseError(f"{path} is not a tuning database: it is not an SQLite file")
    with explained(str(path)), closing(connect(path)) as connection:
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


def connect(path: Path) -> sqlite3.Connection:
    """A file for reading only, also in a read-only place."""
    # In a folder that is read-only SQLite must not try to make a lock beside the file. Where there is a log, its writer
    # lives or was killed: then SQLite has what it needs to read it.
    log = path.with_name(f"{path.name}-wal")
    frozen = "" if os.access(path.parent, os.W_OK) or log.exists() else "&immutable=1"
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{frozen}", uri=True, timeout=PATIENCE)
