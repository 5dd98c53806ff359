"""Databases that are fetched from a URL and only read: the file of a web server or an object store.

    https://host/model.db#sha256=DIGEST

fsspec fetches the file once, into the user's cache, where its name is its digest. Each process compares the copy with
the digest before it opens it, so the file that runs is the one with this digest, also if the server is not trusted.
Beyond that the copy is trusted as any other file of the user is (trust/signature.py): a user who can write the cache
could replace it while it is open.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
from functools import lru_cache
from pathlib import Path

from tuning_db.errors import DatabaseError

_PINNED = re.compile(r"(?P<url>.+)#sha256=(?P<digest>[0-9a-fA-F]{64})")
_EXAMPLES = "a file, or a server as postgresql+psycopg://user@host/name"
_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of the disk that a download is written to, not of its source."""


def fetched(where: str) -> Path:
    """Return the file of a URL, from the user's cache; fetch it if it is not there.

    Args:
        where: The URL, with #sha256=DIGEST at its end.

    Raises:
        DatabaseError: The URL has no digest, cannot be fetched, or leads to another file than that of the digest.
            Nothing is left in the cache then.
    """
    found = _PINNED.fullmatch(where)
    if found is None:
        _require_known(where)
        raise DatabaseError(
            f"{name_of(where)}: a database at a URL holds code, so the URL says which file is meant: append "
            "#sha256=DIGEST, the 64 hexadecimal digits that sha256sum prints for the file that you trust"
        )
    digest = found["digest"].lower()
    path = _folder() / f"{digest}.db"
    if not _is_whole(path, digest):
        _fetch(found["url"], digest, path)
    return path


def name_of(where: str) -> str:
    """Return the URL without its digest and without what may be secret: the user and the query."""
    return _without_secrets(where.partition("#sha256=")[0])


def refused(where: str) -> DatabaseError:
    """Return the error of writing to a URL."""
    return DatabaseError(f"{name_of(where)} is a URL, which is only read: to write, name {_EXAMPLES}")


def _folder() -> Path:
    """Return the folder of the copies, in the same cache as that of autotune/core/paths.py."""
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise DatabaseError(f"no folder to keep databases of URLs in: {error}; set XDG_CACHE_HOME to one") from error
    return Path(cache, "autotune", "databases")


def _is_whole(path: Path, digest: str) -> bool:
    """Return whether there is a copy with the digest. A process reads a copy once, unless it changes."""
    try:
        status = path.stat()
        return _digest_once(path, (status.st_ino, status.st_size, status.st_mtime_ns)) == digest
    except OSError:
        return False


@lru_cache(maxsize=64)
def _digest_once(path: Path, _state: tuple[int, ...]) -> str:
    return _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(url: str, digest: str, path: Path) -> None:
    """Write the file of a URL to `path`, which appears when it is complete and has the digest."""
    name = name_of(url)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:
            partial = Path(folder, path.name)
            _download(url, partial)
            if (got := _digest(partial)) != digest:
                raise DatabaseError(
                    f"{name} has the SHA-256 {got}, not {digest}: it was replaced, or damaged on its way, and is not "
                    "used; ask who publishes it for the digest"
                )
            partial.chmod(0o444)
            os.replace(partial, path)
    except OSError as error:
        raise DatabaseError(
            f"cannot keep {name} in {path.parent}: {error.strerror}; set XDG_CACHE_HOME to a folder with space that "
            "you may write"
        ) from error


def _download(url: str, path: Path) -> None:
    """Write the file of a URL in pieces of a few MiB.

    Raises:
        DatabaseError: It cannot be fetched.
        OSError: The disk is full.
    """
    name = name_of(url)
    _require_known(url)
    from fsspec.core import url_to_fs

    try:
        system, place = url_to_fs(url)
        system.get_file(place, str(path))
    except ImportError as error:
        raise DatabaseError(
            f"{name}: fsspec lacks a package for this URL ({_one_line(error)}): pip install 'autotune-cutlass[remote]' "
            "for http and https, s3fs for s3, gcsfs for gs"
        ) from error
    except Exception as error:  # every file system of fsspec has errors of its own
        if isinstance(error, OSError) and error.errno in _FULL:
            raise
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else _one_line(error)
        raise DatabaseError(
            f"cannot fetch {name}: {reason}; check the URL and the network, and run again: nothing was kept"
        ) from error
    if not path.is_file():
        raise DatabaseError(f"cannot fetch {name}: it is a folder; name a file")


def _require_known(url: str) -> None:
    """Raise DatabaseError for a URL whose protocol fsspec does not know."""
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise DatabaseError(
            f"{name_of(url)} needs the package {error.name}: pip install 'autotune-cutlass[remote]'"
        ) from error

    protocol = re.split("://|::", url, maxsplit=1)[0]
    if protocol not in fsspec.available_protocols():
        raise DatabaseError(
            f"{name_of(url)}: the protocol {protocol} is unknown: name {_EXAMPLES}, or a URL of a protocol that fsspec "
            "knows, such as https://host/model.db#sha256=DIGEST"
        )


def _one_line(error: Exception) -> str:
    """Return the message of an error that may name the URL, in one line."""
    return _without_secrets(" ".join(str(error).split())) or type(error).__name__


def _without_secrets(text: str) -> str:
    return re.sub(r"\?[^\s'\")]+", "?...", re.sub(r"://[^/\s@]*@", "://", text))
