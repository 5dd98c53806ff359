"""Where the seconds of a run go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

STEPS = ("search", "emit", "compile", "load", "verify", "time")
"""What a trial's seconds are of. verify and time: of the device; the others: of cores, beside it as far as they can."""

WAIT = "wait for compilers"
RECORD = "record"


class Ledger:
    """Seconds by step, since it was made. Steps go on beside each other; what none of them hides is in overhead."""

    def __init__(self) -> None:
        self._started = self._since = time.perf_counter()
        self._compilers = self._device = False
        self.seconds = dict.fromkeys((*STEPS, WAIT, RECORD), 0.0)
        self.trials = 0

    @contextmanager
    def charge(self, step: str) -> Iterator[None]:
        """Charge what is done inside to a step."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] += time.perf_counter() - started

    def add(self, seconds: dict[str, float]) -> None:
        """Charge steps that were timed elsewhere."""
        for step, spent in seconds.items():
            if step in self.seconds:
                self.seconds[step] += spent

    def at_work(self, compilers: bool | None = None, device: bool | None = None) -> None:
        """Tell that compilers, or the device, have work from now on or have none.

        While only compilers have some, the device waits for them, whatever we do meanwhile.
        """
        now = time.perf_counter()
        if self._compilers and not self._device:
            self.seconds[WAIT] += now - self._since
        self._since = now
        self._compilers = self._compilers if compilers is None else compilers
        self._device = self._device if device is None else device

    @property
    def total(self) -> float:
        """Seconds since the ledger was made."""
        return time.perf_counter() - self._started

    @property
    def overhead(self) -> float:
        """Seconds in which the device waited for us: it neither verified nor timed, nor did it wait for compilers."""
        return max(0.0, self.total - self.seconds[WAIT] - self.seconds["verify"] - self.seconds["time"])
