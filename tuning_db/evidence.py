"""Keeps what `autotune verify` found on this machine: checks of plans, and wrong kernels.

It is a small SQLite file of the user. The database of the plans may be signed or shared, and a kernel that is wrong
with the driver here need not be wrong elsewhere. Rows are only added. A file that is missing or cannot be read counts
as empty, because it must never keep a network from running.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tuning_db.errors import DatabaseError, explained
from tuning_db.trust.digests import candidate

if TYPE_CHECKING:
    from tuning_db import protocols

FILE = "AUTOTUNE_EVIDENCE"
"""Environment variable: the file to use instead of autotune/evidence.db in the user's cache."""

_APPLICATION_ID = 0x6B746576
"""SQLite's application_id: marks the file, so that no other database gets tables of it."""

_READ_SECONDS = 0.2
"""Longest wait for a writer, which takes milliseconds; a network does not start later than that."""

RIGHT, DRIFTED, WRONG, FAILED = "right", "slower", "wrong", "failed"
"""States of a plan: "slower" is right, but slower than recorded; "failed" could not run."""


class Check(NamedTuple):
    """One check of a plan.

    Attributes:
        plan: Digest of the plan's row.
        device: Name of the device.
        driver, torch, cudnn: Versions; empty on a device that has none.
        seed: Seed of the weights and of the input.
        error: Relative error of the result (2-norm).
        eager_error: That of torch, or of the layers' references, in the dtype of the plan.
        us: Median time in microseconds; None if it was not taken.
        status: One of RIGHT, DRIFTED, WRONG and FAILED.
        worst: The layer at fault and the reason; empty for a right plan.
        date: UTC, for information only.
    """

    plan: str
    device: str
    driver: str
    torch: str
    cudnn: str
    seed: int
    error: float | None
    eager_error: float | None
    us: float | None
    status: str
    worst: str = ""
    date: str = ""


class Wrong(NamedTuple):
    """A kernel that is wrong on a problem: digest of the kernel with its launch values, text of the problem, driver."""

    kernel: str
    problem: str
    driver: str


_TABLES = {"plan_check": Check._fields, "quarantine": Wrong._fields}


def add(check: Check, wrong: Iterable[Wrong] = ()) -> None:
    """Add a check of a plan, and the kernels that it found wrong.

    Raises:
        DatabaseError: The file cannot be written, or is another database.
    """
    path = _path()
    if path is None:
        raise DatabaseError(f"no folder to keep checks of plans in: set {FILE} to a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(f"cannot make the folder of {path}: {error.strerror}; set {FILE} to a file") from error
    dated = check._replace(date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    with explained(str(path)), closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        if not _is_ours(connection):
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise DatabaseError(f"{path} is another database: set {FILE} to a file of its own")
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        for table, columns in _TABLES.items():
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)})")
        _insert(connection, "plan_check", dated)
        for row in wrong:
            _insert(connection, "quarantine", row)


def last(plan: str, **conditions: str) -> Check | None:
    """Return the newest check of a plan; None without one.

    Args:
        plan: Digest of the plan's row.
        conditions: Attributes of the check, such as the device and the versions of the software in use.
    """
    path = _path()
    if path is None or not path.exists():
        return None
    values = {"plan": plan, **conditions}
    where = " AND ".join(f"{name} = ?" for name in values)
    query = f"SELECT {', '.join(Check._fields)} FROM plan_check WHERE {where} ORDER BY rowid DESC LIMIT 1"
    rows = _rows(path, query, *values.values())
    return Check(*rows[0]) if rows else None


def quarantined() -> Mapping[str, frozenset[Wrong]]:
    """Return the kernels that were found wrong, by the text of the problem. The file is read again once it changes."""
    path = _path()
    if path is None:
        return {}
    try:
        status = path.stat()
    except OSError:
        return {}
    return _quarantine(path, (status.st_ino, status.st_size, status.st_mtime_ns))


def kernel_digest(kernel: protocols.Kernel, launch: Mapping[str, int]) -> str:
    """Return the digest by which a kernel of a database with launch values is quarantined."""
    binary = kernel.library.digest if kernel.library else None
    return candidate(kernel.family, kernel.config, kernel.symbol, binary, launch)


@lru_cache(maxsize=4)
def _quarantine(path: Path, _state: tuple[int, ...]) -> dict[str, frozenset[Wrong]]:
    found = [Wrong(*map(str, row)) for row in _rows(path, f"SELECT {', '.join(Wrong._fields)} FROM quarantine")]
    return {row.problem: frozenset(one for one in found if one.problem == row.problem) for row in found}


def _rows(path: Path, query: str, *values: str) -> list[Any]:
    """Return the rows of a query; none if the file cannot be read."""
    with suppress(sqlite3.Error, OSError):
        address = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_READ_SECONDS)) as connection:
            return connection.execute(query, values).fetchall() if _is_ours(connection) else []
    return []


def _is_ours(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION_ID)


def _insert(connection: sqlite3.Connection, table: str, row: Check | Wrong) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row._fields)}) VALUES ({marks})", row)


def _path() -> Path | None:
    """Return the file; None if there is no home folder to keep it in. The cache is that of autotune/core/paths.py."""
    if chosen := os.environ.get(FILE):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "autotune", "evidence.db")
    except RuntimeError:
        return None
