"""Working folders of builds: one for each ninja process, removed at its end.

A process that is killed leaves its folders behind. The next build removes them. A folder is in use as long as a process
holds the lock of its file: the kernel releases the lock when that process ends, in whatever way.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from autotune.core import paths

_PREFIX, _LOCK = "ninja-", "lock"


class BuildFolder:
    """A folder of this process below `paths.generated()`; raises OSError if it cannot be made.

    Attributes:
        path: The folder.
    """

    def __init__(self) -> None:
        root = paths.generated()
        root.mkdir(parents=True, exist_ok=True)
        while True:  # another process may find the folder before it is locked, and remove it
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
            with suppress(FileNotFoundError):
                self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR)
                with suppress(OSError):  # a file system without locks, where nobody removes folders either
                    fcntl.flock(self._lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._lock)

    def remove(self) -> None:
        """Remove the folder with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_stale() -> None:
    """Remove the working folders of processes that have ended."""
    for path in paths.generated().glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, removed meanwhile, another user's, or a file system without locks
            lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
