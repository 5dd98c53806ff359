"""What can go wrong with a database, in one sentence: what it is, where, and what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

_ADVICE = {
    "disk is full": "free some space and run again: what was committed is safe",
    "No space left": "free some space and run again: what was committed is safe",
    "disk I/O error": "see whether its disk is full or failing, and run again: what was committed is safe",
    "readonly": "make the file and its folder writable, or name another with --db",
    "read-only": "open it for writing, or name another with --db",
    "database is locked": "another process holds it: wait for that to end",
    "malformed": "it is corrupted: restore it from a copy, or start a new one",
    "not a database": "it is corrupted: restore it from a copy, or start a new one",
    "unable to open": "check that its folder exists and is writable",
    "password authentication": "check the user and the password of its address",
    "no password": "put the password into its address or into ~/.pgpass",
    "does not exist": "make it on the server first, or correct the address",
    "permission denied": "let this user read and write there, or name another user in the address",
    "refused": "see that the server runs, and that the address has its host and port",
    "could not translate host": "see that the address has the server's host",
    "failed to resolve host": "see that the address has the server's host",
    "connection": "see that the server runs, and run again: what was committed is safe",
}


class DatabaseError(Exception):
    """A database that cannot be read, written or trusted."""


@contextmanager
def explained(name: str, *others: type[Exception]) -> Iterator[None]:
    """Turn SQLite's errors, and others that tell the driver's as `orig`, into a sentence about the database `name`."""
    known: tuple[type[Exception], ...] = (sqlite3.Error, *others)
    try:
        yield
    except known as error:
        text = " ".join(str(getattr(error, "orig", error)).split())
        advice = next((hint for sign, hint in _ADVICE.items() if sign in text), "it does not fit: start a new one")
        raise DatabaseError(f"{name}: {text}; {advice}") from error
