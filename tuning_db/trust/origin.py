"""The origin of a database file: who can have written it, and so whose native code it may hold.

A shared library is native code with the rights of the process that loads it. It is loaded from a database that a
trusted key has signed, and from one that only this user and root can have written: the file, the files that SQLite
keeps beside it and all folders above belong to one of the two, and no other user may write them. A folder with the
sticky bit, such as /tmp, may be written by others, because they cannot replace this user's files in it. The members of
a group that may write are trusted. Device images, which run on a GPU only, are loaded in any case.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuning_db.errors import DatabaseError

ALLOW = "AUTOTUNE_ALLOW_UNSIGNED"
"""Environment variable: 1 allows native code from databases of other users that no trusted key has signed."""

NATIVE = "shared_library"
"""Kind of the binaries that run on the host."""

_BESIDE = ("", "-wal", "-shm", "-journal")


@dataclass(frozen=True)
class Origin:
    """The origin of an open database.

    Attributes:
        name: Name of the database, for messages.
        others: The reason why another user can have written it; None without one.
    """

    name: str
    others: str | None = None

    @classmethod
    def of(cls, path: Path, name: str) -> Origin:
        """Return the origin of a file. Call it when the file is open: it cannot be replaced by another one then."""
        return cls(name, next(_reasons(path.resolve()), None))

    def require_trust(self, kind: str) -> None:
        """Raise DatabaseError for native code that another user can have written, unless ALLOW is set."""
        if kind == NATIVE and self.others and os.environ.get(ALLOW) != "1":
            raise DatabaseError(
                f"{self.name} holds native code that would run with your rights, and {self.others}: if you trust its "
                f"origin, give the key that signed it as trusted_keys, copy the file to a folder of your own, or set "
                f"{ALLOW}=1"
            )


def _reasons(path: Path) -> Iterator[str]:
    """Yield the reasons why other users can have written a file, whose path has no symbolic links."""
    places = [path.with_name(f"{path.name}{suffix}") for suffix in _BESIDE]
    for place in (*places, *path.parents):
        try:
            status = place.lstat()
        except FileNotFoundError:
            continue  # a file beside the database that is not there
        what = "the folder" if stat.S_ISDIR(status.st_mode) else "the file"
        if status.st_uid not in (os.getuid(), 0):
            yield f"{what} {place} belongs to another user (uid {status.st_uid})"
        elif status.st_mode & stat.S_IWOTH and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
            yield f"{what} {place} may be written by every user"
