"""The plans of two databases that are kept in step: both use the same plan of a network on a device.

The plan that was added last is used, so the order of the plans counts, and a tuner that finds a faster plan removes
the one that it wrote before. Of the newest plans of both databases this one becomes the newest in both:

- one that the other database does not have, if its own database also has that of the other: it was made later;
- otherwise the faster one.

A plan that both had after the last pass and that one of them has replaced since is removed from the other.
Plans are recognised by their digests, which cover all that running reads of them (trust/digests.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import sqlalchemy as sa
from sqlalchemy.orm import Session

from tuning_db.schema import Base
from tuning_db.share.snapshot import Row, Snapshot, comparable_rows, without_id

Network = tuple[str, str]
"""The name of a device, and the key of a network."""

Plans = Mapping[Network, str]
"""Network -> digest of a plan."""

_PLAN, _DEVICE = Base.metadata.tables["plan"], Base.metadata.tables["device"]


def without_replaced(parts: tuple[Snapshot, Snapshot], shared: AbstractSet[str]) -> tuple[list[str], list[str]]:
    """Remove from each snapshot the plans that the other database has replaced, and return their digests.

    Args:
        parts: The content of both databases, which is changed.
        shared: Digests of the plans that both had after the last pass.
    """
    first, second = parts
    gone = _replaced(first, second, shared), _replaced(second, first, shared)
    for part, digests in zip(parts, gone, strict=True):
        part["plan"] = [row for row in part["plan"] if row["digest"] not in digests]
    return gone


def _replaced(own: Snapshot, others: Snapshot, shared: AbstractSet[str]) -> list[str]:
    """Return the digests of the own plans that both had, and in whose place the other database has a new one."""
    there = {row["digest"] for row in others["plan"]}
    renewed = {_network(others, row) for row in others["plan"] if row["digest"] not in shared}
    lost = [row for row in own["plan"] if row["digest"] in shared - there]
    return [row["digest"] for row in lost if _network(own, row) in renewed]


def lacking(own: Snapshot, others: Snapshot) -> list[Row]:
    """Return the plans of another database that the own one did not have when it was read.

    Those that it had may have been replaced meanwhile, so a merge would bring them back.
    """
    wanted = Counter(comparable_rows(others, "plan")) - Counter(comparable_rows(own, "plan"))
    rows = zip(others["plan"], comparable_rows(others, "plan"), strict=True)
    return [row for row, value in rows if value in wanted]


def newest(*parts: Snapshot) -> Plans:
    """Return the plan of each network that is the newest in one database, or is to be the newest in two."""
    last = [{_network(part, row): row for row in part["plan"]} for part in parts]
    digests = [{row["digest"] for row in part["plan"]} for part in parts]
    chosen: dict[Network, str] = {}
    for network in {network for each in last for network in each}:
        rows = [each.get(network) for each in last]
        later = [
            row
            for i, row in enumerate(rows)
            if row and all(_is_later(row, other, digests[i], digests[j]) for j, other in enumerate(rows) if j != i)
        ]
        candidates = later or [row for row in rows if row]
        chosen[network] = min((row["median_us"], row["digest"]) for row in candidates)[1]
    return chosen


def _is_later(row: Row, other: Row | None, own: AbstractSet[str], others: AbstractSet[str]) -> bool:
    """Return whether a plan was made later than another database's newest plan, as far as that is known."""
    return other is None or (other["digest"] in own and row["digest"] not in others)


def remove(session: Session, digests: Sequence[str]) -> int:
    """Remove plans from a database, and return their number."""
    rows = session.scalars(sa.select(_PLAN.c.id).where(_PLAN.c.digest.in_(digests))).all()
    session.execute(sa.delete(_PLAN).where(_PLAN.c.id.in_(rows)))
    return len(rows)


def put_last(session: Session, last: Plans, known: AbstractSet[str]) -> int:
    """Make plans the newest ones of a database, and return the number of those that were not.

    Args:
        session: A transaction that writes.
        last: The plans. The database has them.
        known: Digests of all plans that were compared. A plan that was added since stays the newest.
    """
    moved = 0
    devices = {row.id: row.name for row in session.execute(sa.select(_DEVICE.c.id, _DEVICE.c.name))}
    rows = [dict(row) for row in session.execute(sa.select(_PLAN).order_by(_PLAN.c.id)).mappings()]
    present = {(devices[row["device_id"]], row["network"]): row for row in rows}
    for network, digest in last.items():
        row = next((row for row in reversed(rows) if row["digest"] == digest), None)
        if row and present[network]["digest"] in known - {digest}:
            session.execute(sa.insert(_PLAN), without_id(row))
            session.execute(sa.delete(_PLAN).where(_PLAN.c.id == row["id"]))
            moved += 1
    return moved


def _network(snapshot: Snapshot, plan: Row) -> Network:
    return snapshot["device"][plan["device_id"] - 1]["name"], plan["network"]  # ids count from 1
