"""The loop of a search: compilers work in the background while finished kernels are measured.

The same loop drives compilers and devices (search.py) and recorded ones (simulator.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from autotune.core import Deadline
from autotune.families import Kernel
from autotune.ir import Problem
from autotune.search import Schedule


class Compilers(Protocol):
    """Compile kernels in the background."""

    def idle_cores(self) -> int:
        """Return the number of translation units that compilers would start on at once."""

    def build(self, kernels: Sequence[Kernel], search_seconds: float) -> None:
        """Start to compile kernels; those that exist are ready at once.

        Args:
            kernels: The kernels; there may be none.
            search_seconds: Time that choosing them took.
        """

    def ready(self, wait: bool, until: Deadline) -> list[Kernel]:
        """Return kernels that became ready since the last call.

        Args:
            wait: Wait until there is one, unless none is being compiled.
            until: Wait no longer than this.
        """


class Devices(Protocol):
    """Measure kernels."""

    @property
    def places(self) -> Mapping[Problem, int]:
        """The number of the device that measures a problem."""

    def rooms(self) -> Sequence[int]:
        """Return how many candidates each device takes without a wait."""

    def measure(self, kernels: Sequence[Kernel]) -> None:
        """Measure kernels on the problems whose studies want them, and tell these studies.

        The last measurements may still be under way at return.
        """

    def wait(self) -> None:
        """Wait a moment, in which a measurement may end."""

    def finish(self) -> bool:
        """Wait for all measurements under way and tell the studies; return whether there were any."""


class SearchLoop:
    """Compiles and measures what the studies want.

    Args:
        schedule: Asks the studies.
        compilers: The compilers.
        devices: The devices.
        until: The deadline; nothing is started after it.
        weights: Returns the weights of the problems.
    """

    def __init__(
        self,
        schedule: Schedule,
        compilers: Compilers,
        devices: Devices,
        until: Deadline,
        weights: Callable[[], Mapping[Problem, float]] = dict,
    ) -> None:
        self._schedule, self._compilers, self._devices = schedule, compilers, devices
        self.until, self._weights = until, weights
        self._all_rest = False

    def run(self) -> None:
        """Ask, compile and measure until no study wants more or the time is over."""
        schedule, devices = self._schedule, self._devices
        while not self.until.is_over:
            if self._all_rest and not schedule.has_waiting:
                devices.finish()  # the studies wanted nothing: tell them all results before they are asked again
            asked = self._build()
            schedule.add(self.ready(wait=False))
            if not schedule.has_waiting:
                if devices.finish():
                    continue  # with these results the studies may want more
                schedule.add(self.ready(wait=True))
            if batch := schedule.next(devices.rooms(), devices.places):
                devices.measure(batch)
            elif schedule.has_waiting:
                devices.wait()
            elif not asked:
                break
        devices.finish()

    def ready(self, wait: bool) -> list[Kernel]:
        """Return kernels that became ready since the last call; `wait` until there is one, unless none is compiled."""
        return self._compilers.ready(wait, self.until)

    def _build(self) -> bool:
        """Ask for as many kernels as the compilers can start on; return whether any were wanted."""
        started = time.perf_counter()
        num_units = self._schedule.free_units(self._compilers.idle_cores())
        wanted = self._schedule.ask(num_units, self._weights()) if num_units else []
        self._all_rest = bool(num_units) and not wanted and self._schedule.asks_all
        if num_units:
            self._compilers.build(wanted, time.perf_counter() - started)
        return bool(wanted)
