"""What torch and cuDNN offer as kernels of a run; all of a problem's plans are listed and stored before one is run."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import LifoQueue

from autotune.codegen import POLL_SECONDS
from autotune.families.base import Kernel
from autotune.ir import Problem
from autotune.libraries import aten, cudnn
from autotune.measure import Worker
from autotune.tuner.kernel_builder import identity
from tuning_db import Store
from tuning_db.schema import KernelRow

LISTING_SECONDS = 300.0
"""Building all plans of a problem, some of which cuDNN compiles."""


def operator_rows(store: Store, problem: Problem, target: str, torch: str) -> Iterator[KernelRow]:
    """The rows of torch's operators for a problem. torch: its version."""
    for config in aten.configs(problem):
        kernel = Kernel.of(aten.FAMILY, config, problem.dtype, problem.epilogue, target)
        yield store.put_kernel(identity(kernel, f"torch {torch}"), symbol="")


class Listing:
    """cuDNN's plans of some problems, built in processes of their own while others search. Use it as a context manager.

    workers: of nobody else. What the database has from the same cuDNN is taken from there.
    """

    def __init__(self, store: Store, workers: Sequence[Worker], problems: Iterable[Problem], target: str) -> None:
        self._store, self._workers, self._problems, self._target = store, workers, list(problems), target
        self._idle: LifoQueue[Worker] = LifoQueue()  # who has a process already comes first
        for worker in workers:
            self._idle.put(worker)
        self._pool = ThreadPoolExecutor(len(workers))
        self._asked: deque[tuple[Problem | None, Future[cudnn.SerializedPlans]]] = deque()
        self._source = ""
        self._ask(None)

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        while not all(asked.done() for _, asked in self._asked):
            self._stop()
            time.sleep(POLL_SECONDS)
        self._stop()

    @property
    def is_done(self) -> bool:
        """Whether all was told."""
        return not self._asked

    def ready(self, wait: bool) -> Iterator[tuple[Problem, list[KernelRow], str | None]]:
        """Each problem that was listed meanwhile with the rows of its plans, also of those that cannot be built.

        Without any, why, in a sentence. wait: for all problems.
        """
        while self._asked and (wait or self._asked[0][1].done()):
            problem, asked = self._asked.popleft()
            found = asked.result()
            if problem is None:
                yield from self._known(found)
            else:
                yield problem, [self._stored(problem, offer) for offer in found.plans], found.reason

    def _ask(self, problem: Problem | None) -> None:
        self._asked.append((problem, self._pool.submit(self._listed, problem)))

    def _listed(self, problem: Problem | None) -> cudnn.SerializedPlans:
        worker = self._idle.get()
        try:
            return worker.library_plans(problem, LISTING_SECONDS)
        finally:
            self._idle.put(worker)

    def _stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _known(self, made_by: cudnn.SerializedPlans) -> Iterator[tuple[Problem, list[KernelRow], str | None]]:
        """What needs no listing; the other problems are asked for."""
        if made_by.reason:
            yield from ((problem, [], made_by.reason) for problem in self._problems)
            return
        self._source = made_by.source
        stored: dict[str, list[KernelRow]] = {}
        for row in self._store.kernels(self._target):
            if row.family == cudnn.FAMILY:
                stored.setdefault(row.source, []).append(row)
        for problem in self._problems:
            known = stored.get(self._source_of(problem), [])
            if known and len(known) == json.loads(known[0].config)["of"]:  # else listing them was interrupted
                yield problem, known, None
            else:
                self._ask(problem)

    def _source_of(self, problem: Problem) -> str:
        return f"{self._source}: {problem}"

    def _stored(self, problem: Problem, offer: cudnn.SerializedPlan) -> KernelRow:
        library = None
        if not offer.error:
            library = self._store.put_library(
                offer.data,
                kind=cudnn.KIND,
                target=self._target,
                compiler=offer.config["made_by"],
                flags="",
                cutlass="",
                abi_version=0,
            )
        kernel = Kernel.of(cudnn.FAMILY, offer.config, problem.dtype, problem.epilogue, self._target)
        return self._store.put_kernel(
            identity(kernel, self._source_of(problem)),
            symbol=str(problem),
            library_id=library.id if library else None,
            error=offer.error,
        )
