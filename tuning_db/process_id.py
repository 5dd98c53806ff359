"""Names this process so that others can tell whether it still lives, on this machine without asking any clock."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

LEASE = 600.0
"""Seconds for which a claim of another machine's process counts: longer than any trial takes."""


def me() -> str:
    """This process: its machine, number and start. A process that gets the same number later starts at another time."""
    return f"{_machine()} {os.getpid()} {_start(os.getpid())}"


def claimant(number: int) -> str:
    """This process as the owner of one of the claims that it may hold."""
    return f"{me()} {number}"


def is_me(owner: str) -> bool:
    """Whether an owner is this process."""
    return owner.split()[:3] == me().split()


def lives(owner: str, since: float) -> bool:
    """Whether the process that called itself `owner` still runs; one of another machine, whether `since` is recent."""
    machine, number, start, *_ = owner.split()
    if machine == _machine():
        return _start(int(number)) == start
    return abs(time.time() - since) < LEASE  # a clock that jumps makes a trial start early or late, and no worse


@cache
def _machine() -> str:
    """This boot of this machine and, because numbers of processes are a container's own, the container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def _start(number: int) -> str | None:
    """When a process started, in ticks since boot; None if there is none, or only what its parent did not collect."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
