"""Where the wall-clock time of a tuning run goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from autotune.core import timeline

STEPS = ("search", "emit", "compile", "load", "verify", "time")
"""Phases of a trial. `verify` and `time` use the device; the others use CPU cores, in parallel with it if possible."""
WAIT = "wait for compilers"
"""A device has no work, but compilers have; of several devices the mean."""
IDLE = "wait"
"""In the seconds of a trial: how long its device had no work before it."""
RECORD = "record"
"""Reading and writing the database."""


class TimeBreakdown:
    """Seconds of each phase since its creation.

    Phases run in parallel, so their sum may exceed the total.

    Args:
        devices: Number of devices that verify and time.

    Attributes:
        seconds: Seconds by phase: STEPS, WAIT and RECORD.
        trials: Number of trials.
    """

    def __init__(self, devices: int = 1) -> None:
        self._devices = devices
        self._started = self._since = time.perf_counter()
        self._compilers_busy, self._busy_devices = False, set[int]()
        self.seconds = dict.fromkeys((*STEPS, WAIT, RECORD), 0.0)
        self.trials = 0

    @contextmanager
    def charge(self, step: str) -> Iterator[None]:
        """Add the time that the context's body takes to a phase."""
        started = time.perf_counter()
        try:
            with timeline.span(timeline.Lane.TUNER, step):
                yield
        finally:
            self.seconds[step] += time.perf_counter() - started

    def add(self, seconds: dict[str, float]) -> None:
        """Add times that were taken elsewhere, by phase; unknown phases are ignored."""
        for step, spent in seconds.items():
            if step in self.seconds:
                self.seconds[step] += spent

    def set_busy(self, compilers: bool | None = None, device: bool | None = None, place: int = 0) -> None:
        """State whether the compilers and a device have work from now on; None changes nothing.

        While compilers have work, a device without any waits for them, whatever the tuner itself does meanwhile.

        Args:
            compilers: Whether the compilers have work.
            device: Whether the device has work.
            place: Number of the device.
        """
        now = time.perf_counter()
        if self._compilers_busy:
            self.seconds[WAIT] += (now - self._since) * (1 - len(self._busy_devices) / self._devices)
        self._since = now
        self._compilers_busy = self._compilers_busy if compilers is None else compilers
        if device is not None:
            (self._busy_devices.add if device else self._busy_devices.discard)(place)

    @property
    def total(self) -> float:
        """Return the seconds since the creation."""
        return time.perf_counter() - self._started

    @property
    def overhead(self) -> float:
        """Return the seconds in which a device neither verified nor timed, nor waited for compilers."""
        measuring = (self.seconds["verify"] + self.seconds["time"]) / self._devices
        return max(0.0, self.total - self.seconds[WAIT] - measuring)
