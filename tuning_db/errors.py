"""DatabaseError, and the translation of a driver's errors into one sentence: what is wrong, where, what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

_FULL = "free some space and run again: what was committed is safe"
_CORRUPTED = "it is corrupted: restore it from a copy, or start a new one"

_SQLITE_ADVICE = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR: "check whether its disk is full or failing, and run again: what was committed is safe",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable, or name another file with --db",
    sqlite3.SQLITE_BUSY: "another process holds it: wait for that process to end",
    sqlite3.SQLITE_LOCKED: "another process holds it: wait for that process to end",
    sqlite3.SQLITE_CORRUPT: _CORRUPTED,
    sqlite3.SQLITE_NOTADB: _CORRUPTED,
    sqlite3.SQLITE_CANTOPEN: "check that its folder exists and is writable",
}
"""Primary result code of SQLite (https://sqlite.org/rescode.html) -> what to do."""

_SERVER_ADVICE = {
    "No space left": _FULL,
    "read-only": "open it for writing, or name another database with --db",
    "password authentication": "check the user and the password of its address",
    "no password": "put the password into its address or into ~/.pgpass",
    "does not exist": "make it on the server first, or correct the address",
    "permission denied": "let this user read and write there, or name another user in the address",
    "refused": "check that the server runs, and that the address has its host and port",
    "could not translate host": "check that the address has the server's host",
    "failed to resolve host": "check that the address has the server's host",
    "connection": "check that the server runs, and run again: what was committed is safe",
}
"""Words of a message -> what to do; the first that is found counts.

The messages are those of PostgreSQL 15 and psycopg 3.2, whose connection errors have no code (SQLSTATE)."""

_OTHER = "its tables do not fit this version: start a new one"


class DatabaseError(Exception):
    """A database that cannot be read, written or trusted. The message is one sentence for the user."""


@contextmanager
def explained(name: str, *others: type[Exception]) -> Iterator[None]:
    """Raise DatabaseError instead of a driver's error, with the message "NAME: what is wrong; what to do".

    Args:
        name: The database, as the user named it.
        others: Errors to translate beside those of sqlite3. If one has an attribute `orig`, that is the driver's error.
    """
    known: tuple[type[Exception], ...] = (sqlite3.Error, *others)
    try:
        yield
    except known as error:
        driver = getattr(error, "orig", error)
        text = " ".join(str(driver).split())
        raise DatabaseError(f"{name}: {text}; {_advice(driver, text)}") from error


def _advice(error: object, text: str) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return _SQLITE_ADVICE.get(code & 0xFF, _OTHER)  # the low byte of an extended code is the primary one
    return next((advice for words, advice in _SERVER_ADVICE.items() if words in text), _OTHER)
