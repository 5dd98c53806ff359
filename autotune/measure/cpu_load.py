"""Tells whether other processes use the CPU while something is timed on it."""

from __future__ import annotations

import os
import time
from pathlib import Path

MAX_SHARE = 0.15
"""Share of the cores that others may use: beyond it the threads of a kernel wait for each other, and a network with
many short kernels may take tens of times longer."""
IGNORE = "AUTOTUNE_IGNORE_LOAD"
"""Environment variable: 1 takes times as they are, for a machine that is always busy."""
_SECONDS = 0.04
"""Least time between two readings: the kernel counts in units of 10 ms."""
_STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Columns of /proc/stat in which the CPU does nothing: idle, and waiting for a disk."""


class CpuLoad:
    """Reads how much of the CPU others use. Where Linux does not tell, they use nothing."""

    def __init__(self) -> None:
        self._tick = os.sysconf("SC_CLK_TCK")
        self.begin()

    def begin(self) -> None:
        """Forget what was read: the load counts from now on."""
        self._wall, self._busy, self._own, _ = self._read()
        self._said: list[str] = []

    def slowed(self) -> list[str]:
        """Return a sentence if others used more than MAX_SHARE of the cores between the last two readings."""
        if os.environ.get(IGNORE) == "1":
            return []
        wall, busy, own, cores = self._read()
        seconds = wall - self._wall
        if seconds >= _SECONDS:
            others = (busy - self._busy) - (own - self._own)
            self._wall, self._busy, self._own = wall, busy, own
            share = others / (seconds * cores) if cores else 0.0
            self._said = [f"other processes use {share:.0%} of the CPU"] if share > MAX_SHARE else []
        return self._said

    def _read(self) -> tuple[float, float, float, int]:
        """Return the time, the busy seconds of all cores and those of this process, and the number of cores."""
        try:
            lines = _STAT.read_text().splitlines()
        except OSError:
            return time.monotonic(), 0.0, 0.0, 0
        ticks = [int(word) for word in lines[0].split()[1:9]]  # those of virtual machines are among them
        busy = sum(count for column, count in enumerate(ticks) if column not in _IDLE)
        cores = sum(line.startswith("cpu") for line in lines) - 1
        return time.monotonic(), busy / self._tick, time.process_time(), cores
