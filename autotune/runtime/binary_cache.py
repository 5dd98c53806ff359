"""Binaries on disk: files named by their digest in a private folder, checked once in each process before use."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

SUFFIX = {"device_image": ".cubin", "shared_library": ".so", "cudnn_plan": ".plan"}

_checked: set[Path] = set()  # files that this process has verified or written


@cache
def folder() -> Path:
    """Return the folder of binaries: autotune/binaries below $XDG_CACHE_HOME or ~/.cache.

    If that cannot be written or belongs to another user, a temporary folder.
    """
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotune" / "binaries"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.stat().st_uid == os.getuid() and os.access(path, os.W_OK):
            path.chmod(0o700)
            return path
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="autotune-"))


def put(digest: str, kind: str, binary: Callable[[], bytes]) -> Path:
    """Return the path of a binary, after writing it if it is not there yet or differs.

    Args:
        digest: SHA-256 of the binary, in hexadecimal.
        kind: Kind of the binary, a key of SUFFIX.
        binary: Returns the bytes; called only if they have to be written.
    """
    path = folder() / f"{digest}{SUFFIX[kind]}"
    if path in _checked:
        return path
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
        _checked.add(path)
        return path
    handle, partial = tempfile.mkstemp(dir=folder())
    with os.fdopen(handle, "wb") as file:
        file.write(binary())
    os.replace(partial, path)
    _checked.add(path)
    return path
