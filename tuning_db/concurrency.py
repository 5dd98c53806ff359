"""Other processes that use a database: waits for one that has locked its file, and tells whether one still runs.

On one machine the answer whether a process runs depends on no clock. The start of a process is read in ticks since
boot, from /proc/PID/stat (proc_pid_stat(5)). psutil gives it only as a time of day, which changes when the clock is
set.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from functools import cache
from pathlib import Path
from typing import Any

LOCK_SECONDS = 60.0
"""Seconds to wait until another process has finished its write."""

NOTICE_SECONDS = 1.0
"""Seconds to wait without a word. A write takes milliseconds, unless its process is stopped or holds the file."""

_POLL_SECONDS = 0.05
"""Time between two attempts of a statement for which SQLite does not wait: a change of the journal mode."""

_LOG = logging.getLogger(__name__)


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


LEASE = 1500.0
"""Seconds for which a claim of a process on another machine counts: longer than any trial takes. Inductor may compile a
network for 1200 seconds."""

_STATE, _START_TIME = 0, 19
"""Positions in /proc/PID/stat behind the command: fields 3 (state) and 22 (starttime)."""


def own_id() -> str:
    """Return this process's machine, process id and start.

    A later process with the same process id has another start.
    """
    return f"{_machine()} {os.getpid()} {_start(os.getpid())}"


def claim_owner(number: int) -> str:
    """Return this process as the owner of its claim `number`."""
    return f"{own_id()} {number}"


def is_own(owner: str) -> bool:
    """Return whether this process owns a claim."""
    return owner.split()[:3] == own_id().split()


def is_alive(owner: str, since: float) -> bool:
    """Return whether the process that owns a claim still runs.

    Args:
        owner: What `own_id` or `claim_owner` returned in that process.
        since: When it made the claim, in seconds since 1970. It counts only for a process on another machine, which is
            taken to be alive for LEASE seconds. If a clock jumps, a trial starts early or late; no data is lost.
    """
    try:
        machine, number, start, *_ = owner.split()
        if machine == _machine():
            return _start(int(number)) == start
    except ValueError:  # no process of ours: the database is somebody else's
        return False
    return abs(time.time() - since) < LEASE


@cache
def _machine() -> str:
    """Return this boot of this machine, and the container: process ids are those of a container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def _start(number: int) -> str | None:
    """Return the start of a process in ticks since boot; None if it has ended, also if it is a zombie."""
    try:
        # The command is in parentheses and may itself contain any character.
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[_STATE] in "ZX" else fields[_START_TIME]
