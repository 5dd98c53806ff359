"""The plans from which the search for the plan of a network begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from autotune.ir import Network
from autotune.measure import LayerAssignment
from autotune.runtime import faster_alternatives
from autotune.tuner.plan.plan_candidates import Known
from autotune.tuner.plan.plan_moves import PlanState
from autotune.tuner.plan.plan_timer import PlanTimer
from tuning_db import Store
from tuning_db.schema import Device


def winners_alone(known: Known, overlap: bool) -> PlanState:
    """Return the plan with the candidate of each layer that is the fastest alone, and with all overlaps or none."""
    plan = PlanState({}).with_assignments(
        LayerAssignment(name, each[0].candidate) for name, each in known.items() if each
    )
    return plan.overlapping() if overlap else plan


def other_starts(
    store: Store, device: Device, parts: Network, winners: PlanState, known: Known, descend: bool
) -> Iterator[PlanState]:
    """Yield the plans besides the layers' winners from which a search begins, apart from the plan in use."""
    taken = faster_alternatives(store, device, parts)
    faster = [one for one in parts.alternatives if one.name in taken]
    if faster:
        yield replace(winners, alternatives=faster)
    if not descend:
        return
    own = winners.with_assignments(
        LayerAssignment(name, next((one.candidate for one in each if one.candidate.native), each[0].candidate))
        for name, each in known.items()
        if each
    ).overlapping()
    if own.sequence(parts) != winners.sequence(parts):
        yield own
        if faster:
            yield replace(own, alternatives=faster)


def with_best_overlaps(
    timer: PlanTimer, plan: PlanState, descend: bool, tell: Callable[[str], object]
) -> PlanState | None:
    """Return the faster one of a plan and the same plan with all overlaps; None if it does not run."""
    timed = timer.compare_those_that_run([plan, *([plan.overlapping()] if descend else [])])
    if not timed:
        tell(f"the plan that the network would run now does not run: {timer.fault}")
        return None
    return min(timed, key=lambda one: one[1].median_us or math.inf)[0]
