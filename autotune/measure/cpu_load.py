"""Tells whether other processes use the CPU while something is timed on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from autotune.core import process_tree_main

MAX_SHARE = 0.15
"""Share of the cores that others may use: beyond it the threads of a kernel wait for each other, and a network with
many short kernels may take tens of times longer."""
IGNORE = "AUTOTUNE_IGNORE_LOAD"
"""Environment variable: 1 takes times as they are, for a machine that is always busy."""
_SECONDS, _RUN_SECONDS = 0.04, 0.2
"""Least time between two readings: the kernel counts in units of 10 ms, and does so for each process of a run."""
_STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Columns of /proc/stat in which the CPU does nothing: idle, and waiting for a disk."""


class CpuLoad:
    """Reads how much of the CPU others use. Where Linux does not tell, they use nothing.

    Args:
        own_seconds: Returns the seconds of the CPU that are not those of others; by default those of this process.
        least_seconds: Least time between two readings.
    """

    def __init__(self, own_seconds: Callable[[], float] = time.process_time, least_seconds: float = _SECONDS) -> None:
        self._tick = os.sysconf("SC_CLK_TCK")
        self._own_seconds, self._least_seconds = own_seconds, least_seconds
        self.begin()

    def begin(self) -> None:
        """Forget what was read: the load counts from now on."""
        self._wall, self._busy, self._own, _ = self._read()
        self._said: list[str] = []

    def slowed(self) -> list[str]:
        """Return a sentence if others used more than MAX_SHARE of the cores between the last two readings."""
        if os.environ.get(IGNORE) == "1":
            return []
        if time.monotonic() - self._wall >= self._least_seconds:
            wall, busy, own, cores = self._read()
            others = (busy - self._busy) - (own - self._own)
            share = others / ((wall - self._wall) * cores) if cores else 0.0
            self._wall, self._busy, self._own = wall, busy, own
            self._said = [f"other processes use {share:.0%} of the CPU"] if share > MAX_SHARE else []
        return self._said

    def _read(self) -> tuple[float, float, float, int]:
        """Return the time, the busy seconds of all cores and our own, and the number of cores."""
        try:
            lines = _STAT.read_text().splitlines()
        except OSError:
            return time.monotonic(), 0.0, 0.0, 0
        ticks = [int(word) for word in lines[0].split()[1:9]]  # those of virtual machines are among them
        busy = sum(count for column, count in enumerate(ticks) if column not in _IDLE)
        cores = sum(line.startswith("cpu") for line in lines) - 1
        return time.monotonic(), busy / self._tick, self._own_seconds(), cores


@cache
def run_load() -> CpuLoad:
    """Return the reader of this process whose own load is that of the whole run, its compilers included."""
    return CpuLoad(run_seconds, _RUN_SECONDS)


def run_seconds() -> float:
    """Return the seconds of the CPU of the tuner that has started this process, and of all processes below it.

    The tuner starts the compilers, too. Each process counts those that it has waited for, so no seconds are lost when a
    compiler ends.
    """
    import psutil  # not needed to run a network

    seconds = 0.0
    with suppress(psutil.NoSuchProcess):
        tuner = psutil.Process(_tuner())
        for process in (*tuner.children(recursive=True), tuner):
            with suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                seconds += used.user + used.system + used.children_user + used.children_system
    return seconds


@cache
def _tuner() -> int:
    """Return the process that has started this one, past the one between both that ends its children with itself."""
    import psutil

    between = Path(process_tree_main.__file__).name
    parents = psutil.Process().parents()
    return next((one.pid for one in parents if not any(word.endswith(between) for word in one.cmdline())), os.getpid())
