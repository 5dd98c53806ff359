"""Packs a database for shipping: the best candidates of every problem and the plans, nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import sqlalchemy as sa

from tuning_db.schema import KernelRow, Library, Measurement
from tuning_db.store import DatabaseError, Store

KEPT = 3
"""Candidates kept for each problem and device: should one be refused by another batch size, the next one serves."""


def pack(source: Path, target: Path) -> None:
    """Write what the runtime needs of `source` to a new file; raises DatabaseError if `target` exists."""
    if target.exists():
        raise DatabaseError(f"{target} exists: remove it or name another file")
    Store.open(source).close()  # says what is wrong with it, if anything
    shutil.copyfile(source, target)
    with Store.create(target) as store:
        measurements = {row.id for row in _best(store)}
        kernels = {row.kernel_id for row in _best(store)} | _planned(store)
        with store.session.begin():
            store.session.execute(sa.delete(Measurement).where(Measurement.id.not_in(measurements)))
            store.session.execute(sa.delete(KernelRow).where(KernelRow.id.not_in(kernels)))
            used = sa.select(KernelRow.library_id).where(KernelRow.library_id.is_not(None))
            store.session.execute(sa.delete(Library).where(Library.id.not_in(used)))
        store.compact()


def _best(store: Store) -> list[Measurement]:
    return [
        row
        for device in store.devices()
        for problem in store.problems()
        for row in store.ranking(device, problem.text)[:KEPT]
    ]


def _planned(store: Store) -> set[int]:
    return {choice["kernel"] for plan in store.plans() for choice in plan.choices}
