"""The candidates that PyTorch and cuDNN offer, and the trials of cuDNN's plans, which need no compiler of ours.

All plans of a problem are listed and stored before one of them is run.
"""

from __future__ import annotations

import heapq
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from queue import LifoQueue

from autotune.core import Deadline, timeline
from autotune.families import Kernel
from autotune.ir import Problem
from autotune.libraries import aten, cudnn, inductor
from autotune.measure import Worker
from autotune.tuner.kernel_builder import identity
from autotune.tuner.machines import stop_until_done
from autotune.tuner.progress import Progress
from autotune.tuner.trials.device_queues import DeviceQueues, WantedTrial
from tuning_db import Store
from tuning_db.schema import KernelRow

MAX_LISTING_WORKERS = 4
"""Processes that list cuDNN's plans."""
LISTING_SECONDS = 300.0
"""Time limit for building all plans of a problem, some of which cuDNN compiles."""

ListedPlans = tuple[Problem, list[KernelRow], str | None]
"""A problem, the rows of its plans, and the reason if there are none."""


def operator_rows(
    store: Store, problem: Problem, target: str, torch: str, inductor_modes: tuple[str, ...] = ()
) -> Iterator[KernelRow]:
    """Yield the rows of PyTorch's operators for a problem, then those of what Inductor compiles.

    Args:
        store: The database; the rows are added to it.
        problem: The problem.
        target: The compilation target of the run.
        torch: The version of PyTorch.
        inductor_modes: The modes in which Inductor compiles.
    """
    found = [(aten.FAMILY, config) for config in aten.configs(problem)]
    found += [(inductor.FAMILY, config) for config in inductor.configs(problem, inductor_modes)]
    for family, config in found:
        kernel = Kernel.of(family, config, problem.dtype, problem.epilogue, target)
        yield store.put_kernel(identity(kernel, f"torch {torch}"), symbol="")


def listing_workers(worker: Worker, jobs: int) -> list[Worker]:
    """Return the processes that list plans for a device, whose compilers leave cores to those of kernels.

    Args:
        worker: The measuring process of the device.
        jobs: Number of cores that compile.
    """
    count = max(1, min(MAX_LISTING_WORKERS, jobs // 4))
    return [worker.beside(timeline.Lane.LISTING) for _ in range(count)]


class LibraryCandidates:
    """Lists the cuDNN plans of some problems in processes of its own, in the background.

    Plans that the database has from the same version of cuDNN are taken from there. It is a context manager: its exit
    ends the processes.

    Args:
        store: The database; the plans are added to it.
        workers: The processes; nothing else uses them.
        problems: The problems, in the order in which they are listed.
        target: The compilation target of the run.
    """

    def __init__(self, store: Store, workers: Sequence[Worker], problems: Iterable[Problem], target: str) -> None:
        self._store, self._workers, self._problems, self._target = store, workers, list(problems), target
        self._idle: LifoQueue[Worker] = LifoQueue()  # last in, first out: a worker that has started is used again
        for worker in workers:
            self._idle.put(worker)
        self._executor = ThreadPoolExecutor(len(workers))
        self._requests: deque[tuple[Problem | None, Future[cudnn.SerializedPlans]]] = deque()
        self._source = ""
        self._request(None)  # the version of cuDNN

    def __enter__(self) -> LibraryCandidates:
        return self

    def __exit__(self, *_: object) -> None:
        stop_until_done(self._executor, [future for _, future in self._requests], self._workers)
        for worker in self._workers:
            worker.stop()

    @property
    def is_done(self) -> bool:
        """Return whether `ready` has yielded all problems."""
        return not self._requests

    def ready(self, until: Deadline | None = None) -> Iterator[ListedPlans]:
        """Yield each problem that was listed since the last call with the rows of its plans.

        There are rows for plans that cannot be built, too.

        Args:
            until: Wait until all problems are listed, but no longer than this; None does not wait.
        """
        while self._requests and (self._requests[0][1].done() or (until and self._wait(until))):
            problem, future = self._requests.popleft()
            found = future.result()
            if problem is None:
                yield from self._listed_before(found)
            else:
                yield problem, [self._put_plan(problem, plan) for plan in found.plans], found.reason

    def _wait(self, until: Deadline) -> bool:
        """Wait for the oldest request until a deadline; return whether it is done."""
        future = self._requests[0][1]
        futures.wait([future], None if math.isinf(until.left) else until.left)
        return future.done()

    def _request(self, problem: Problem | None) -> None:
        self._requests.append((problem, self._executor.submit(self._list, problem)))

    def _list(self, problem: Problem | None) -> cudnn.SerializedPlans:
        worker = self._idle.get()
        try:
            return worker.library_plans(problem, LISTING_SECONDS)
        finally:
            self._idle.put(worker)

    def _listed_before(self, version: cudnn.SerializedPlans) -> Iterator[ListedPlans]:
        """Yield the problems whose plans the database has, and request the others."""
        if version.reason:
            yield from ((problem, [], version.reason) for problem in self._problems)
            return
        self._source = version.source
        stored: dict[str, list[KernelRow]] = {}
        for row in self._store.kernels(self._target):
            if row.family == cudnn.FAMILY:
                stored.setdefault(row.source, []).append(row)
        for problem in self._problems:
            rows = stored.get(self._source_of(problem), [])
            if rows and len(rows) == json.loads(rows[0].config)["of"]:  # else the listing was interrupted
                yield problem, rows, None
            else:
                self._request(problem)

    def _source_of(self, problem: Problem) -> str:
        return f"{self._source}: {problem}"

    def _put_plan(self, problem: Problem, plan: cudnn.SerializedPlan) -> KernelRow:
        library = None
        if not plan.error:
            library = self._store.put_library(
                plan.data,
                kind=cudnn.KIND,
                target=self._target,
                compiler=plan.config["made_by"],
                flags="",
                cutlass="",
                abi_version=0,
            )
        kernel = Kernel.of(cudnn.FAMILY, plan.config, problem.dtype, problem.epilogue, self._target)
        return self._store.put_kernel(
            identity(kernel, self._source_of(problem)),
            symbol=str(problem),
            library_id=library.id if library else None,
            error=plan.error,
        )


class LibraryTrials:
    """Tries cuDNN's plans: the first choice of its heuristics for each problem, then the second choice for each.

    Args:
        listed: Lists the plans; None if there are none.
        queues: The devices.
        until: The deadline of the search.
        progress: Receives events.
    """

    def __init__(
        self, listed: LibraryCandidates | None, queues: DeviceQueues, until: Deadline, progress: Progress
    ) -> None:
        self._listed, self._queues, self._until, self._progress = listed, queues, until, progress
        self._plans: list[tuple[int, int, Problem, KernelRow]] = []  # a heap, by the choice of the heuristics
        self._num_plans = 0
        self._reasons: set[str] = set()

    @property
    def num_waiting(self) -> int:
        """Number of plans that are listed and were not tried."""
        return len(self._plans)

    def collect(self, until: Deadline | None = None) -> None:
        """Take over the plans that were listed, and report each reason for missing plans once.

        Args:
            until: Wait for all of them until this deadline; None does not wait.
        """
        for problem, rows, reason in self._listed.ready(until) if self._listed else ():
            if reason and isinstance(problem, aten.PASSES) and reason not in self._reasons:
                self._reasons.add(reason)
                self._progress.note(reason)
            for place, row in enumerate(row for row in rows if row.library):
                heapq.heappush(self._plans, (place, self._num_plans, problem, row))
                self._num_plans += 1

    def submit(self, count: int) -> None:
        """Try some plans as long as the search may start more."""
        while count and self._plans and not self._until.is_over:
            *_, problem, row = heapq.heappop(self._plans)
            self._queues.submit(WantedTrial(problem, row))
            count -= 1
