"""Identifies this process to others, so that they can tell whether it still runs.

On one machine the answer depends on no clock. The start of a process is read in ticks since boot, from
/proc/PID/stat (proc_pid_stat(5)). psutil gives it only as a time of day, which changes when the clock is set.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

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
