"""Runs the tuner in a process of its own and takes its time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from autotune.core import AutotuneError


def timed_tune(options: Sequence[str], database: Path, binaries: Path) -> float:
    """Run `autotune tune`; what it prints goes to a file beside the database.

    Args:
        options: Its options, without --db.
        database: The database that it writes.
        binaries: Folder of compiled kernels, also Inductor's. A later run with the same folder compiles none of them.

    Returns:
        Seconds from the start of the process to its end.

    Raises:
        AutotuneError: It failed.
    """
    command = [sys.executable, "-m", "autotune_cli", "tune", *options, "--db", str(database)]
    folders = {"AUTOTUNE_GENERATED": str(binaries), "TORCHINDUCTOR_CACHE_DIR": str(binaries / "inductor")}
    start = time.perf_counter()
    done = subprocess.run(command, check=False, env=os.environ | folders, capture_output=True)
    seconds = time.perf_counter() - start
    database.with_suffix(".txt").write_bytes(done.stdout)
    if done.returncode:
        raise AutotuneError(f"autotune tune ended with {done.returncode}: {done.stderr.decode().strip()[-500:]}")
    return seconds
