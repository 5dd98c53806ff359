"""The candidates of a network's layers, and the plan that the network would run now."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.core import Deadline
from autotune.ir import Network, Problem
from autotune.libraries import cudnn_names
from autotune.measure import THROTTLED, LayerAssignment, Worker
from autotune.runtime import Candidate, candidate, plan_for_other_size, shortlist
from autotune.tuner.plan.copied_plans import CopiedPlan
from autotune.tuner.plan.plan_moves import PlanState
from autotune.tuner.trials import record_result
from autotune.tuner.trials.library_trials import operator_rows
from tuning_db import Store, launch_text
from tuning_db.schema import Device

MAX_CANDIDATES = 12
"""Candidates of a layer that are tried: the fastest alone."""
MAX_LIBRARY_PLANS = 2
"""cuDNN plans of a layer that are tried in addition."""


@dataclass(frozen=True)
class KnownCandidate:
    """A candidate of a layer, the id of its kernel, and its time alone in microseconds.

    throttled: number of rounds of that time in which the device was slowed down.
    """

    candidate: Candidate
    kernel_id: int
    us: float | None
    throttled: int = 0


Known = dict[str, list[KnownCandidate]]
"""The candidates of each layer by its name, the fastest alone first."""


def known_candidates(store: Store, device: Device, network: Network) -> Known:
    """Return the measured candidates of each layer; where there are none, PyTorch's operators.

    Layers of one problem share a list, so that a candidate that is added for one of them is known for all.
    """
    problems = dict.fromkeys(layer.problem for layer in network.all_layers)
    known = {problem: candidates_of(store, device, problem) for problem in problems}
    return {layer.name: known[layer.problem] for layer in network.all_layers}


def candidates_of(store: Store, device: Device, problem: Problem) -> list[KnownCandidate]:
    """Return the measured candidates of a problem, the fastest first; where there are none, PyTorch's operators."""
    measured = shortlist(store.ranking(device, str(problem)), MAX_CANDIDATES, MAX_LIBRARY_PLANS)
    if measured or "torch" not in device.details:
        return [
            KnownCandidate(
                candidate(store, row.kernel, row.launch),
                row.kernel_id,
                row.median_us,
                row.details.get(THROTTLED, 0),
            )
            for row in measured
        ]
    rows = operator_rows(store, problem, device.target, device.details["torch"])
    return [KnownCandidate(candidate(store, row, {}), row.id, None) for row in rows]


def plan_in_use(
    store: Store,
    device: Device,
    worker: Worker,
    network: Network,
    known: Known,
    copied: CopiedPlan | None,
    until: Deadline,
) -> PlanState | None:
    """Return the plan that the network would run now, and add its candidates to those that are known.

    A plan for another batch size or image size, or of another database, names kernels that were verified elsewhere.
    Those that were not verified on their layer's problem are verified now; a layer whose kernel is not right runs on
    its winner.
    """
    own = store.plan(device, network.key) or copied
    other = None if own else plan_for_other_size(store, device, network)
    saved = other.plan if other else own
    if saved is None:
        return None
    if any(choice["layer"] not in known for choice in saved.choices):
        return None
    assignments = {name: LayerAssignment(name, each[0].candidate) for name, each in known.items() if each}
    problems = {layer.name: layer.problem for layer in network.all_layers}
    for choice in saved.choices:
        name, kernel = choice["layer"], store.kernel(choice["kernel"])
        us = None if other else choice["us"]  # of another size
        one = KnownCandidate(candidate(store, kernel, choice["launch"]), kernel.id, us)
        if all(one.candidate != other.candidate for other in known[name]):
            if until.is_over:
                return None
            if not _is_right(store, device, worker, problems[name], one):
                continue
            known[name].append(one)
        assignments[name] = LayerAssignment(name, one.candidate, choice["overlap"])
    names = saved.details.get("alternatives", [])
    plan = PlanState(
        assignments,
        alternatives=[alternative for alternative in network.alternatives if alternative.name in names],
        order=[choice["layer"] for choice in saved.choices],
    )
    return plan if all(layer.name in assignments for layer in plan.layers(network)) else None


def _is_right(store: Store, device: Device, worker: Worker, problem: Problem, one: KnownCandidate) -> bool:
    """Return whether a candidate is right on a problem; one of ours that was not tried there is tried now."""
    if one.candidate.kind == cudnn_names.KIND:
        return one.candidate.symbol == str(problem)  # it refuses any other problem
    if not one.candidate.native:
        return True  # an operator of torch
    launch = launch_text(one.candidate.launch)
    tried = [
        row.status
        for row in store.measurements(device, str(problem))
        if row.kernel_id == one.kernel_id and launch_text(row.launch) == launch
    ]
    if not tried:
        worker.send(problem, one.candidate)
        result = worker.receive()
        record_result(store, device, problem, one.kernel_id, one.candidate, result)
        tried = [result.status]
    return "ok" in tried
