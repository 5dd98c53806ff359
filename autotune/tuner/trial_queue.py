"""Trials: what no other process is trying is sent to the device, and recorded as it comes back.

A few candidates wait behind the one that is being measured: so the device goes on while that is recorded, the next are
chosen, and kernels that were compiled are written down. A tuner that is killed loses these few and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.ir import Problem
from autotune.measure import Result, Worker
from autotune.runtime import Candidate, candidate
from autotune.tuner.progress import Progress
from autotune.tuner.time_breakdown import RECORD, Ledger
from tuning_db import Store
from tuning_db.schema import Device, KernelRow
from tuning_db.store import CLAIMS


@dataclass
class _Tried:
    """A kernel on a problem. before: the seconds that its first trial is told; left: trials to come."""

    problem: Problem
    row: KernelRow
    before: Mapping[str, float]
    left: int
    done: Callable[[list[Result]], None]
    results: list[Result] = field(default_factory=list)


class Trials:
    """The trials of one tuner on one device."""

    def __init__(self, store: Store, worker: Worker, device: Device, ledger: Ledger, progress: Progress) -> None:
        self._store, self._worker, self._device = store, worker, device
        self._ledger, self._progress = ledger, progress
        self._sent: deque[tuple[_Tried, Candidate]] = deque()
        self._best: dict[Problem, float | None] = {}

    def begin(
        self,
        problem: Problem,
        row: KernelRow,
        launches: Sequence[Mapping[str, int]],
        before: Callable[[], Mapping[str, float]] = dict,
        done: Callable[[list[Result]], None] = lambda _: None,
    ) -> bool:
        """Try those launch values of a kernel on a problem that were not tried; False if another process is at it.

        before: tells the seconds that the kernel has cost so far; called if it is tried. done: called with the results
        once the last of them is recorded.
        """
        self.finish(CLAIMS - 1)
        with self._ledger.charge(RECORD):
            left = self._store.claim(self._device, str(problem), row, launches) if launches else []
        if left is None:
            return False
        if not left:
            done([])
            return True
        tried = _Tried(problem, row, before(), len(left), done)
        for launch in left:
            with self._ledger.charge("load"):
                chosen = candidate(self._store, row, launch)
            self.finish(CLAIMS - 1)
            self._worker.send(problem, chosen, self._best_us(problem))
            self._sent.append((tried, chosen))
            self._ledger.at_work(device=True)
        return True

    def finish(self, most: int = 0) -> bool:
        """Record what comes back until so many candidates are still at the device; whether there was anything."""
        waited = len(self._sent) > most
        while len(self._sent) > most:
            result = self._worker.receive()
            tried, chosen = self._sent.popleft()
            self._ledger.at_work(device=bool(self._sent))
            seconds = result.details["seconds"]
            self._ledger.add(seconds)
            self._ledger.trials += 1
            with self._ledger.charge(RECORD):
                before = {} if tried.results else tried.before
                details = {**result.details, "seconds": {**before, **seconds}}
                self.record(tried.problem, tried.row, chosen, replace(result, details=details))
                self._progress.measured(str(tried.problem), 1, self._improved(tried.problem, result.median_us))
            tried.results.append(result)
            tried.left -= 1
            if not tried.left:
                tried.done(tried.results)
        return waited

    def record(self, problem: Problem, row: KernelRow, chosen: Candidate, result: Result, final: bool = False) -> None:
        """Write down what came of a candidate."""
        self._store.put_measurement(
            device_id=self._device.id,
            problem_id=self._store.put_problem(str(problem)).id,
            kernel_id=row.id,
            launch=dict(chosen.launch),
            status=result.status,
            error=result.error,
            relative_error=result.relative_error,
            median_us=result.median_us,
            spread_us=result.spread_us,
            samples_us=result.samples_us,
            final=final,
            details=result.details,
        )

    def _improved(self, problem: Problem, us: float | None) -> float | None:
        """The best time of a problem, once this result is known."""
        best = min((known for known in (us, self._best_us(problem)) if known), default=None)
        self._best[problem] = best
        return best

    def _best_us(self, problem: Problem) -> float | None:
        """The best time of a problem, as far as this process knows."""
        if problem not in self._best:
            self._best[problem] = self._store.best_us(self._device, str(problem))
        return self._best[problem]
