"""Builds kernels and draws a verdict on each: a unit that fails is split, a unit that was killed is tried again.

A unit that does not compile is split into its kernels, so a bad kernel fails alone. A compiler that was killed, most
often because the machine ran out of memory, says nothing about its kernels: they are tried again with half as many
compilers at a time, down to one. Nothing else is compiled meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol

from autotune.codegen.ninja_build import BuildBatch, remove_stale
from autotune.codegen.translation_units import Built, Unit, existing, renderable, units
from autotune.core import ToolchainError
from autotune.core.errors import Fault, record_fault
from autotune.families import Kernel

POLL_SECONDS = 0.02
"""Interval at which the progress of a build is checked."""

_MAX_FRUITLESS = (
    8  # ends of batches one after the other that leave units and have built none, after which it is an error
)


def build(kernels: Sequence[Kernel], jobs: int) -> Generator[Built]:
    """Compile kernels and yield each unit as it is ready; a kernel that fails is yielded alone, with its error.

    Args:
        kernels: Kernels of one target.
        jobs: Compilers that run at once.

    Raises:
        ToolchainError: There is no compiler for the target, or no space on the disk.
    """
    sound, faulty = renderable(kernels)
    exist, missing = existing(sound)
    yield from (*faulty, *exist)
    with closing(BuildQueue(jobs)) as queue:
        queue.add(units(missing, jobs))
        while queue.pending:
            yield from queue.finished()
            if queue.pending:
                time.sleep(POLL_SECONDS)


class Batch(Protocol):
    """Units that compilers work on in the background, here or on other machines."""

    @property
    def pending(self) -> Collection[Unit]:
        """The units that `finished` has not returned yet."""

    @property
    def ended(self) -> int | None:
        """An exit code once nothing works on the batch any more; units that are pending then have no result."""

    def finished(self) -> list[Built]:
        """Return the units that have ended since the last call; does not wait."""

    def close(self) -> None:
        """End the compilers."""


StartBatch = Callable[[Sequence[Unit], int], Batch]
"""(units, compilers that run at once) -> a batch that has started."""


@dataclass(frozen=True)
class _Attempt:
    """How units are tried.

    Attributes:
        jobs: Compilers that run at once.
        again: The compilers of these units were killed before, so nothing else is compiled meanwhile.
    """

    jobs: int
    again: bool = False


class BuildQueue:
    """Units that are compiled in the background; close() ends the compilers.

    It begins with the removal of what builds of killed processes have left.

    Args:
        jobs: Compilers that run at once.
        start: Starts a batch; ninja on this machine does, unless the compilers are elsewhere.
    """

    def __init__(self, jobs: int, start: StartBatch = BuildBatch) -> None:
        remove_stale()
        self._jobs, self._start = jobs, start
        self._running: dict[Batch, _Attempt] = {}
        self._waiting: dict[_Attempt, list[Unit]] = {}  # until nothing runs
        self._fruitless = 0

    @property
    def pending(self) -> int:
        """Number of units without a result."""
        return sum(map(len, self._waiting.values())) + sum(len(batch.pending) for batch in self._running)

    @property
    def idle_jobs(self) -> int:
        """Number of compilers that may be started now."""
        return 0 if self._recovering else max(0, self._jobs - self.pending)

    @property
    def _recovering(self) -> bool:
        return bool(self._waiting) or any(attempt.again for attempt in self._running.values())

    def add(self, added: Sequence[Unit], jobs: int | None = None) -> None:
        """Start to compile units.

        Args:
            added: The units.
            jobs: Compilers that run at once; None for those of the queue.
        """
        attempt = _Attempt(jobs or self._jobs)
        if self._recovering:
            self._wait(added, attempt)
        elif added:
            self._running[self._start(added, attempt.jobs)] = attempt

    def finished(self) -> list[Built]:
        """Return the units that have ended since the last call, each with a verdict; does not wait.

        A kernel whose compiler is killed also when it runs alone is returned with `killed`.

        Raises:
            ToolchainError: There is no space on the disk, or ninja does not run.
        """
        results: list[Built] = []
        for batch, attempt in list(self._running.items()):
            finished = batch.finished()
            results += [built for built in finished if self._is_final(built, attempt)]
            if batch.pending and batch.ended is not None:
                self._restart(batch, attempt, fruitless=not finished)
            if not batch.pending or batch.ended is not None:
                batch.close()
                del self._running[batch]
        if self._waiting and not self._running:
            attempt = max(self._waiting, key=lambda attempt: attempt.jobs)
            self._running[self._start(self._waiting.pop(attempt), attempt.jobs)] = attempt
        return results

    def close(self) -> None:
        """End the compilers."""
        for batch in self._running:
            batch.close()
        self._running.clear()
        self._waiting.clear()

    def _is_final(self, built: Built, attempt: _Attempt) -> bool:
        """Return whether a result is a verdict; else try its kernels again."""
        parts = [Unit((kernel,)) for kernel in built.unit.kernels]
        if built.path:
            return True
        if built.killed:
            record_fault(Fault.COMPILER_KILLED)
        if built.killed and not (attempt.again and attempt.jobs == 1):
            self._wait([built.unit], _Attempt(max(1, attempt.jobs // 2), again=True))
        elif len(parts) == 1:
            return True
        elif built.killed:
            self._wait(parts, attempt)
        else:
            self.add(parts)
        return False

    def _restart(self, batch: Batch, attempt: _Attempt, fruitless: bool) -> None:
        """Try the units again that a batch has left."""
        self._fruitless = self._fruitless + 1 if fruitless else 0
        if self._fruitless > _MAX_FRUITLESS:
            raise ToolchainError(
                f"the compilers stopped with exit code {batch.ended} before all kernels were built, "
                f"{self._fruitless} times in a row"
            )
        self._wait(list(batch.pending), replace(attempt, again=True))

    def _wait(self, added: Sequence[Unit], attempt: _Attempt) -> None:
        self._waiting.setdefault(attempt, []).extend(added)
