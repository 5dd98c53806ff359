"""The location of a database: a file, the address of a server, or a URL; and the marks that make a file a database."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TypeGuard

from tuning_db import concurrency
from tuning_db.errors import DatabaseError, explained

Location = str | os.PathLike[str]
"""A file; the address of a server, postgresql+psycopg://user@host/name; or a URL, https://host/model.db#sha256=DIGEST,
whose file is only read (remote.py)."""

APPLICATION_ID = 0x6B746462
"""SQLite's application_id: marks the file as a tuning database."""

SCHEMA_VERSION = 4
"""Counts the changes of tuning_db/schema.py; a file keeps it as SQLite's user_version, a server in a table.

A file of another schema is refused."""

_SERVERS = ("postgresql:", "postgresql+")


def is_address(where: Location) -> TypeGuard[str]:
    """Return whether a location is the address of a server."""
    return isinstance(where, str) and where.startswith(_SERVERS) and "://" in where


def is_remote(where: Location) -> TypeGuard[str]:
    """Return whether a location is the URL of a file that is fetched and only read."""
    return isinstance(where, str) and "://" in where and not is_address(where)


def file_of(where: Location) -> Path:
    """Return the file of a database that is not on a server; that of a URL is fetched, unless the user's cache has it.

    Raises:
        DatabaseError: The file of a URL cannot be fetched, or is not that of its digest.
    """
    if is_remote(where):
        from tuning_db import remote

        return remote.fetched(where)
    return Path(where)


def check(path: Path) -> None:
    """Raise DatabaseError if a file to read is no database of this schema, or if there is no file or no table in it."""
    if not path.exists():
        raise DatabaseError(f"no tuning database at {path}: make one with `autotune tune --db {path}`")
    if not has_tables(path):
        raise DatabaseError(f"{path} is empty: tuning was stopped before it began; run `autotune tune --db {path}`")


def has_tables(path: Path) -> bool:
    """Return whether a file is a tuning database; False for an SQLite file without tables, such as an empty file.

    Raises:
        DatabaseError: For any other file, a directory, and another schema.
    """
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "not a regular file"
        raise DatabaseError(f"{path} is {kind}: name the file of a tuning database")
    try:
        with path.open("rb") as file:
            header = file.read(16)
    except OSError as error:
        raise DatabaseError(f"cannot read {path}: {error.strerror}") from error
    if not header:
        return False
    if header != b"SQLite format 3\0":
        raise DatabaseError(f"{path} is not a tuning database: it is not an SQLite file")
    with explained(str(path)), closing(connect(path)) as connection:
        connection.execute("BEGIN")  # one state of the file, which another process may be making
        [[application]] = concurrency.execute(connection, path, "PRAGMA application_id")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not application and not tables:
        return False
    if application != APPLICATION_ID:
        raise DatabaseError(f"{path} is an SQLite file, but not a tuning database")
    check_schema(path, version)
    return True


def check_schema(path: Path, version: int) -> None:
    """Raise DatabaseError for a file whose schema is not the one that this version reads and writes."""
    if version == SCHEMA_VERSION:
        return
    newer = version > SCHEMA_VERSION
    what = "upgrade the package" if newer else "tune again into a new file with scripts/tune.py --db NEW.db"
    raise DatabaseError(
        f"{path} has schema {version}, {'newer' if newer else 'older'} than the {SCHEMA_VERSION} that this version "
        f"reads: {what}"
    )


def connect(path: Path) -> sqlite3.Connection:
    """Open a file for reading only, also in a read-only folder."""
    # In a read-only folder SQLite cannot make a lock file, so the file is opened as immutable. If there is a log, its
    # writer lives or was killed, and SQLite finds all that it needs beside the file.
    log = path.with_name(f"{path.name}-wal")
    frozen = "" if os.access(path.parent, os.W_OK) or log.exists() else "&immutable=1"
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{frozen}", uri=True)
