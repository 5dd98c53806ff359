"""The location of a database: a file, the address of a server, or a URL; the marks and the lock of a file."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, TypeGuard

from tuning_db.errors import DatabaseError, explained

Location = str | os.PathLike[str]
"""A file; the address of a server, postgresql+psycopg://user@host/name; or a URL, https://host/model.db#sha256=DIGEST,
whose file is only read (remote.py)."""

APPLICATION_ID = 0x6B746462
"""SQLite's application_id: marks the file as a tuning database."""

SCHEMA_VERSION = 5
"""Counts the changes of tuning_db/schema.py; a file keeps it as SQLite's user_version, a server in a table.

A file of a schema that is not in SCHEMAS is refused."""

SCHEMAS = (4, SCHEMA_VERSION)
"""Schemas that are read. Schema 4 lacks the tables of packed databases, and gets them when it is opened for writing."""

LOCK_SECONDS = 60.0
"""Seconds to wait until another process has finished its write."""

NOTICE_SECONDS = 1.0
"""Seconds to wait without a word. A write takes milliseconds, unless its process is stopped or holds the file."""

_POLL_SECONDS = 0.05
"""Time between two attempts of a statement for which SQLite does not wait: a change of the journal mode."""

_LOG = logging.getLogger(__name__)

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
        [[application]] = execute(connection, path, "PRAGMA application_id")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not application and not tables:
        return False
    if application != APPLICATION_ID:
        raise DatabaseError(f"{path} is an SQLite file, but not a tuning database")
    check_schema(path, version)
    return True


def check_schema(path: Path, version: int) -> None:
    """Raise DatabaseError for a file whose schema this version does not read."""
    if version in SCHEMAS:
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


def execute(connection: sqlite3.Connection, path: Path, statement: str, values: tuple[object, ...] = ()) -> list[Any]:
    """Execute a statement that may have to wait for another process, and return its rows.

    A warning is logged once if it waits for longer than NOTICE_SECONDS.

    Args:
        connection: The connection to the file.
        path: The file.
        statement: One that may be repeated if the file is locked: BEGIN, a PRAGMA, or the first query of a transaction.
        values: Its parameters.

    Raises:
        sqlite3.OperationalError: The file is still locked after LOCK_SECONDS.
    """
    began, told = time.monotonic(), False
    _wait_at_most(connection, min(NOTICE_SECONDS, LOCK_SECONDS))
    try:
        while True:
            try:
                return connection.execute(statement, values).fetchall()
            except sqlite3.OperationalError as error:
                waited = time.monotonic() - began
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or waited >= LOCK_SECONDS:
                    raise
            if waited >= NOTICE_SECONDS and not told:
                _LOG.warning("%s is locked by %s: waiting for up to %.0f s", path, _holder(path), LOCK_SECONDS)
                told = True
            time.sleep(_POLL_SECONDS)
    finally:
        _wait_at_most(connection, LOCK_SECONDS)


def _wait_at_most(connection: sqlite3.Connection, seconds: float) -> None:
    """Set how long SQLite itself waits for a lock, during which Python handles no signal, such as that of Ctrl-C."""
    connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")


def _holder(path: Path) -> str:
    """Return the process that has locked a file for writing, as a text: "process 42 (python tune.py)".

    The file itself is not opened: closing it would release the locks that this process has (fcntl(2)).
    """
    try:
        files = {_identity(name) for name in (str(path), f"{path}-shm") if os.path.exists(name)}
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        # NUMBER: POSIX ADVISORY WRITE PID MAJOR:MINOR:INODE START END (proc_locks(5)); those who wait have "->".
        [number] = {row[4] for row in rows if row[1:4] == ["POSIX", "ADVISORY", "WRITE"] and row[5] in files}
        if number == str(os.getpid()):
            return "another connection of this process"
        command = Path(f"/proc/{number}/cmdline").read_text().replace("\0", " ").strip()
    except (OSError, ValueError):  # the process is in another container or on another machine, or the lock is gone
        return "another process"
    return f"process {number} ({command})"


def _identity(path: str) -> str:
    found = os.stat(path)
    return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
