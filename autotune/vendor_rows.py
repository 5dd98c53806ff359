"""What torch and cuDNN offer as kernels of a tuning run; cuDNN's plans are all listed and stored before any is run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from autotune.families.base import Kernel
from autotune.problem import Problem
from autotune.vendor import aten, cudnn
from autotune.worker import Worker
from autotune.workshop import identity
from tuning_db import Store
from tuning_db.schema import KernelRow

LISTING_SECONDS = 300.0
"""Building all plans of a problem, some of which cuDNN compiles."""


def operator_rows(store: Store, problem: Problem, target: str, torch: str) -> Iterator[KernelRow]:
    """The rows of torch's operators for a problem. torch: its version."""
    for config in aten.configs(problem):
        kernel = Kernel.of(aten.FAMILY, config, problem.dtype, problem.epilogue, target)
        yield store.put_kernel(identity(kernel, f"torch {torch}"), symbol="")


def plan_rows(
    store: Store, worker: Worker, problems: Iterable[Problem], target: str
) -> Iterator[tuple[Problem, list[KernelRow], str | None]]:
    """Each problem with the rows of its plans, also of those that cannot be built; without any, why, in a sentence.

    What the database has from the same cuDNN is taken from there.
    """
    made_by = worker.vendor(None, LISTING_SECONDS)
    if made_by.reason:
        yield from ((problem, [], made_by.reason) for problem in problems)
        return
    stored: dict[str, list[KernelRow]] = {}
    for row in store.kernels(target):
        if row.family == cudnn.FAMILY:
            stored.setdefault(row.source, []).append(row)
    for problem in problems:
        source = f"{made_by.source}: {problem}"
        known = stored.get(source, [])
        if known and len(known) == json.loads(known[0].config)["of"]:  # else listing them was interrupted
            yield problem, known, None
            continue
        found = worker.vendor(problem, LISTING_SECONDS)
        yield problem, [_stored(store, problem, offer, target, source) for offer in found.plans], found.reason


def _stored(store: Store, problem: Problem, offer: cudnn.Offer, target: str, source: str) -> KernelRow:
    library = None
    if not offer.error:
        library = store.put_library(
            offer.data,
            kind=cudnn.KIND,
            target=target,
            compiler=offer.config["made_by"],
            flags="",
            cutlass="",
            abi_version=0,
        )
    kernel = Kernel.of(cudnn.FAMILY, offer.config, problem.dtype, problem.epilogue, target)
    return store.put_kernel(
        identity(kernel, source), symbol=str(problem), library_id=library.id if library else None, error=offer.error
    )
