"""cuDNN's plans as kernels of a tuning run: all of a problem's are listed and stored before any is run."""

from __future__ import annotations

import json

from autotune.problem import Problem
from autotune.vendor import cudnn
from autotune.worker import Worker
from tuning_db import Store
from tuning_db.schema import KernelRow

LISTING_SECONDS = 300.0
"""Building all plans of a problem, some of which cuDNN compiles."""


def plan_rows(store: Store, worker: Worker, problem: Problem, target: str) -> tuple[list[KernelRow], str | None]:
    """The rows of a problem's plans, also of those that cannot be built; without any, why, in a sentence.

    What the database has from the same cuDNN is taken from there.
    """
    made_by = worker.vendor(None, LISTING_SECONDS)
    if made_by.reason:
        return [], made_by.reason
    source = f"{made_by.source}: {problem}"
    known = [row for row in store.kernels(target) if row.family == cudnn.FAMILY and row.source == source]
    if known and len(known) == json.loads(known[0].config)["of"]:  # else listing them was interrupted
        return known, None
    found = worker.vendor(problem, LISTING_SECONDS)
    return [_stored(store, problem, offer, target, source) for offer in found.plans], found.reason


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
    identity = {
        "family": cudnn.FAMILY,
        "config": json.dumps(offer.config),
        "dtype": problem.dtype,
        "epilogue": str(problem.epilogue),
        "target": target,
        "source": source,
    }
    return store.put_kernel(
        identity, symbol=str(problem), library_id=library.id if library else None, error=offer.error
    )
