"""The finals of a run: the fastest candidates of each problem are timed in interleaved rounds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from autotune.core import Deadline, timeline
from autotune.ir import Problem
from autotune.libraries import aten
from autotune.measure import THROTTLED, Result, Worker
from autotune.runtime import Candidate, candidate, shortlist
from autotune.tuner.machines import stop_until_done
from autotune.tuner.request import ONLY, TRIALS
from autotune.tuner.run_context import RunContext
from autotune.tuner.time_shares import FINALS
from autotune.tuner.trials import is_whole
from tuning_db import launch_text, ranking
from tuning_db.schema import Measurement

FINALISTS = 6
"""Kernels of a problem that are timed in the final rounds."""
FINALIST_PLANS = 3
"""cuDNN plans of a problem that are timed with them."""
FINAL_ROUNDS = 15
"""Interleaved rounds per problem."""
FINALS_OF = "finals"
"""Detail of a final measurement: the time.time() of its rounds, which those of the other finalists have, too."""


@dataclass(frozen=True)
class _Final:
    """The finalists of a problem, and the time at which their rounds began."""

    problem: Problem
    rows: Sequence[Measurement]
    candidates: Sequence[Candidate]
    started: float


class Finals:
    """Times finalists on the devices of a run; each problem on its own device.

    Args:
        run: The run.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._limits = run.options.limits
        self._store, self._device, self._queues, self._progress = run.store, run.device, run.queues, run.progress
        self._was_slow = False
        self._seconds = 0.0  # the longest time of a candidate so far

    def run(self) -> None:
        """Time the finalists of all problems, the heaviest first; those for which no time is left stay as they are.

        Raises:
            OutOfTimeError: The run is over.
        """
        run = self._run
        run.progress.stage("timing the finalists")
        # What was tried in the processes beside the search is compared there, when it is done.
        beside = run.options.arch.is_cuda
        problems = [one for one in run.weights.sorted() if not (beside and is_whole(one, run.networks))]
        until = run.phases.begin(FINALS)
        if len(self._queues.workers) == 1:
            for problem in problems:
                if final := self._begun(problem, until):
                    self._record(final, self._rounds(self._queues.workers[0], final))
            return
        left = {id(worker): deque[Problem]() for worker in self._queues.workers}
        for problem in problems:
            left[id(self._queues.worker(problem))].append(problem)
        self._run_at_once(left, until)

    def finalists(self, problem: Problem) -> list[Measurement]:
        """Return the fastest candidates, the best of PyTorch included; none if these were compared before."""
        timed = self._store.measurements(self._device, str(problem), "ok")
        ranked = ranking.ranked(timed, finals_first=False)
        best_operator = [row for row in ranked if row.kernel.family == aten.FAMILY][:1]
        finalists = shortlist(ranked, FINALISTS, FINALIST_PLANS)
        finalists += [row for row in best_operator if row not in finalists]
        alike = [row for row in timed if row.final and _limits(row) == self._limits and not row.details.get(THROTTLED)]
        finals = {(row.kernel_id, launch_text(row.launch)) for row in alike}
        return [] if all((row.kernel_id, launch_text(row.launch)) in finals for row in finalists) else finalists

    def _run_at_once(self, left: dict[int, deque[Problem]], until: Deadline) -> None:
        """Keep each device busy with its problems; a thread waits for each."""
        workers = {id(worker): worker for worker in self._queues.workers}
        executor = ThreadPoolExecutor(len(workers))
        running: dict[Future[list[Result]], tuple[int, _Final]] = {}
        try:
            while any(left.values()) or running:
                for place, problems in left.items():
                    while problems and place not in {used for used, _ in running.values()}:
                        if final := self._begun(problems.popleft(), until):
                            running[executor.submit(self._rounds, workers[place], final)] = place, final
                for future in futures.wait(running, return_when=futures.FIRST_COMPLETED).done:
                    self._record(running.pop(future)[1], future.result())
        finally:
            stop_until_done(executor, list(running), workers.values() if running else [])

    def _begun(self, problem: Problem, until: Deadline) -> _Final | None:
        """Return the finalists of a problem if there are any, and time for them."""
        rows = self.finalists(problem)
        if not rows or until.is_over or until.left < len(rows) * self._seconds:
            return None
        return _Final(problem, rows, self._candidates(rows), time.monotonic())

    def _candidates(self, rows: Sequence[Measurement]) -> list[Candidate]:
        return [candidate(self._store, row.kernel, row.launch) for row in rows]

    def _rounds(self, worker: Worker, final: _Final) -> list[Result]:
        with timeline.span(timeline.Lane.TUNER, "time"):
            results = worker.finals(final.problem, final.candidates, FINAL_ROUNDS)
            failed = all(result.status != "ok" for result in results)
            return self._rounds_without_failures(worker, final) if failed and len(results) > 1 else results

    def _rounds_without_failures(self, worker: Worker, final: _Final) -> list[Result]:
        """Time each finalist alone, because one has ended the request, and then together those that do not fail."""
        results = [worker.finals(final.problem, [one], 1)[0] for one in final.candidates]
        right = [i for i, result in enumerate(results) if result.status == "ok"]
        again = worker.finals(final.problem, [final.candidates[i] for i in right], FINAL_ROUNDS) if right else []
        for i, result in zip(right, again, strict=True):
            results[i] = result
        return results

    def _record(self, final: _Final, results: Sequence[Result]) -> None:
        spent, timed = time.monotonic() - final.started, round(time.time(), 3)
        self._run.breakdown.add({"time": spent})
        self._seconds = max(self._seconds, spent / len(final.rows))
        if any(result.details.get(THROTTLED) for result in results) and not self._was_slow:
            self._was_slow = True
            self._progress.note(
                "the device was slowed down while finalists were timed, by other processes or by heat: these times are "
                "too long, and a later run takes them again"
            )
        for row, tried, result in zip(final.rows, final.candidates, results, strict=True):
            if result.status == "ok":
                limited = replace(result, details={**result.details, **self._limits, FINALS_OF: timed})
                self._queues.record(final.problem, row.kernel, tried, limited, final=True)
        self._progress.measured(str(final.problem), 0, self._store.best_us(self._device, str(final.problem)))


def _limits(row: Measurement) -> dict[str, Any]:
    """Return what the search of a final measurement was limited to."""
    return {name: row.details[name] for name in (ONLY, TRIALS) if name in row.details}
