"""Chooses the plan of a network: a candidate for each layer, the alternatives that are taken, and the order.

In a network a kernel finds another cache state and other neighbours than when it is timed alone, so the candidate that
wins alone need not win there. The search is a coordinate descent (plan_descent.py) from several plans.

Torch's operators for the whole network, eager and compiled by Inductor, are no part of the descent: with them taken, no
other move would change what runs. At the end the fastest plan is compared with them in interleaved rounds, by the
process that has compiled them: compiling a deep network once more takes longer than all else here. A plan that was
timed never gives way to code that was not timed beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autotune.core import NEVER, Deadline
from autotune.ir import WHOLE, Network
from autotune.measure import THROTTLED, LayerAssignment, Result, Worker
from autotune.runtime import Candidate
from autotune.tuner.plan.copied_plans import CopiedPlan
from autotune.tuner.plan.plan_candidates import Known, KnownCandidate, known_candidates, plan_in_use
from autotune.tuner.plan.plan_descent import PlanDescent
from autotune.tuner.plan.plan_moves import PlanState
from autotune.tuner.plan.plan_recorder import PlanRecorder
from autotune.tuner.plan.plan_starts import other_starts, winners_alone, with_best_overlaps
from autotune.tuner.plan.plan_timer import FINAL_ROUNDS, ROUNDS, PlanTimer, network_timer
from tuning_db import Store
from tuning_db.schema import Device, PlanRow

_Timed = tuple[PlanState, Result]
_Whole = Sequence[tuple[PlanState, KnownCandidate]]
"""Plans that run the whole network on torch's operators, and their candidates with the times of their trials."""

COMPARISON_SECONDS, COMPARISON_SHARE = 8.0, 0.3
"""Time that is kept for the comparison with torch: most seconds, and share of what the choice of a plan has. Another
process has to load the plan for it, which takes some seconds for a deep network."""


@dataclass(frozen=True)
class Rivals:
    """The process that compares a plan with torch's operators for the whole network.

    Attributes:
        worker: The process.
        has_compiled: Whether it has compiled what Inductor compiles; if not, only eager torch is compared.
    """

    worker: Worker
    has_compiled: bool = True


def tune_network_plan(
    store: Store,
    device: Device,
    worker: Worker,
    network: Network,
    until: Deadline = NEVER,
    descend: bool = True,
    tell: Callable[[str], object] = lambda _: None,
    rivals: Callable[[], Rivals] | None = None,
    copied: CopiedPlan | None = None,
) -> PlanRow | None:
    """Find and record the fastest plan of a tuned network.

    The descent begins with the fastest of these plans: the winners of all layers, the same with the alternatives that
    are faster when each layer runs alone (many small gains, each below the noise), the fastest kernels of our own (a
    single operator of PyTorch or plan of cuDNN keeps the network from being one graph of our own, and no change of one
    layer shows whether that pays), and the plan in use, which is that of the database for this network, or else of
    another database, or else for another size. In all of them each kernel overlaps the one before it; the plan in
    use keeps its own overlaps if it is faster so. A descent may end in a local minimum. So a second one starts from
    the plan in use, or, if the first one did, from the faster of the others. The plan in use takes part in the last
    comparison, so the result is never slower than the plan in use; nor is it slower than the whole network on torch's
    operators, as far as these were compared with it. `details["torch_us"]` has their times of that comparison.
    If the fastest plan is compiled by Inductor, the fastest one that is not is recorded, too, for machines without a
    compiler.

    Args:
        store: The database with the measurements of all layers.
        device: The device.
        worker: Times plans on that device.
        network: The network.
        until: Deadline. The plan that is recorded at any moment is the fastest so far.
        descend: Whether to search. Otherwise the winners of the layers, with the alternatives that are faster, are
            compared with torch's operators for the whole network.
        tell: Called with a message if the plan cannot be tuned.
        rivals: Returns the process that compares the fastest plan with torch's operators for the whole network; called
            when the plan is known, because that process may still compile. `worker` by default.
        copied: The plan of another database or for another size.

    Returns:
        The recorded plan, or None if a layer has no candidate or the network cannot be timed. Its
        `details["alone_us"]` is the time of the network's plain layers with the winner of each;
        `details["alternatives"]` names the alternatives that it takes.
    """
    find_rivals = rivals or (lambda: Rivals(worker))
    known = known_candidates(store, device, network)
    if not all(known[layer.name] for layer in network.layers):
        return None
    timer = network_timer(worker, network, until.clock)
    in_use = plan_in_use(store, device, worker, network, known, copied, until)
    recorder = PlanRecorder(store, device, network, known)
    whole, winners = _whole_plans(network, known), winners_alone(known, overlap=descend)
    saved = store.plan(device, network.key)  # a run that ends early keeps it
    # Inductor's code that was faster in an earlier run gives way only to what is faster than it was.
    recorder.keeps_faster = saved is not None and WHOLE in saved.details.get("alternatives", [])
    _record_whole(recorder, whole, saved)
    running = _without_failures(timer, network, winners, known, tell)
    if running is None:
        tell(f"the plan of the network is not tuned: its kernels do not run together: {timer.fault}")
        _compare_with_torch(recorder, None, find_rivals(), until)
        return recorder.row
    winners, first_results = running
    if saved is None:
        recorder.record_if_faster(winners, first_results[0])
    parts = network.without_whole
    further = other_starts(store, device, parts, winners, known, descend)
    starts = [winners, *(plan for plan in further if timer.runs(plan))]
    in_database = in_use if saved else None
    if in_use and not _is_whole(in_use, network):
        in_use = with_best_overlaps(timer, in_use, descend, tell)
        starts += [in_use] if in_use else []
    timed = timer.compare_those_that_run(starts)
    if not timed:
        return recorder.row
    starts = [plan for plan, _ in timed]
    recorder.alone_us = next((_median_us(one) for one in timed if one[0] is winners), math.inf)
    fastest, *others = sorted(timed, key=_median_us)
    if _median_us(fastest) < _fastest_us(whole):
        recorder.best_us = _median_us(fastest)
        if recorder.row or fastest[0] is not in_database:
            recorder.record(*fastest)
    comparison_seconds = min(COMPARISON_SECONDS, COMPARISON_SHARE * until.left) if whole else 0.0
    last_seconds = (len(starts) + 3) * timer.seconds * FINAL_ROUNDS / ROUNDS + comparison_seconds
    layer_us = {name: each[0].us or 0.0 for name, each in known.items() if each}

    def descent(on_improvement: Callable[[PlanState, Result], object] = lambda *_: None) -> PlanDescent:
        return PlanDescent(timer, parts, _candidates(known), layer_us, until.before(last_seconds), on_improvement)

    found, search = starts, descent(recorder.record_if_faster)
    if descend:
        first = search.descend(fastest[0], group_first=True)
        second = next((plan for plan, _ in others if (plan is in_use) != (fastest[0] is in_use)), None)
        found = [first]
        found += [descent().descend(second, group_first=second is not in_use)] if second else []
        found += [plan for plan in starts if plan is in_use]
    without = [_precompiled(plan, known) for plan in found if _is_compiled(plan.sequence(network))]
    plans = [*found, *(plan for plan in without if not until.is_over and timer.runs(plan))]
    if until.left >= (len(plans) + 1) * timer.seconds * FINAL_ROUNDS / ROUNDS:
        _conclude(timer, recorder, winners, plans, find_rivals, search if descend else None, until)
    return recorder.row


def record_copied_plan(
    store: Store,
    device: Device,
    worker: Worker,
    network: Network,
    copied: CopiedPlan,
    until: Deadline = NEVER,
    tell: Callable[[str], object] = lambda _: None,
) -> PlanRow | None:
    """Time a copied plan, and record it: a run whose time ends before the descent has a fast plan.

    Args:
        store: The database, where the plan's kernels were tried.
        device: The device.
        worker: Times plans on that device.
        network: The network.
        copied: The plan.
        until: Deadline.
        tell: Called with a message if the plan does not run.

    Returns:
        The recorded plan, or None if it does not run on this device or there is no time.

    Raises:
        OutOfTimeError: At the deadline of the worker.
    """
    known = known_candidates(store, device, network)
    plan = plan_in_use(store, device, worker, network, known, copied, until)
    if plan is None or until.is_over:
        return None
    timer = network_timer(worker, network, until.clock)
    results = timer.compare([plan])
    if results is None:
        tell(f"the plan of another database or size does not run: {timer.fault}")
        return None
    recorder = PlanRecorder(store, device, network, known)
    recorder.record(plan, results[0])
    return recorder.row


def _without_failures(
    timer: PlanTimer, network: Network, plan: PlanState, known: Known, tell: Callable[[str], object]
) -> tuple[PlanState, list[Result]] | None:
    """Return a plan that runs, with its result: a candidate that fails in the network gives way to the next one.

    Args:
        timer: Times plans.
        network: The network.
        plan: The plan to begin with.
        known: The candidates of each layer; those that fail are removed.
        tell: Called with a message about each candidate that fails.

    Returns:
        None if a layer has no other candidate, or a failure names no layer.
    """
    names = {layer.name for layer in network.all_layers}
    while (results := timer.compare([plan], 1)) is None:
        name = timer.failed_layer
        if name not in names or not name:
            return None
        failed = plan.assignments[name].candidate
        tell(f"{timer.fault}; it ran as '{failed}', and its next candidate is taken")
        left = [one for one in known[name] if one.candidate != failed]
        if not left:
            return None
        known[name][:] = left  # layers of one problem share a list
        plan = plan.with_assignments(
            replace(assignment, candidate=left[0].candidate, overlap=assignment.overlap and left[0].candidate.native)
            for other, assignment in plan.assignments.items()
            if known[other] is known[name] and assignment.candidate == failed
        )
    return plan, results


def _record_whole(recorder: PlanRecorder, whole: _Whole, saved: PlanRow | None) -> None:
    """Record the fastest of torch's operators, by their trials, where there is no plan: a run may end at any time."""
    recorder.best_us = saved.median_us if saved else math.inf
    if saved is None:
        for plan, one in whole:
            if one.us is not None:
                recorder.record_if_faster(plan, _result(one.us, one.throttled))


def _conclude(
    timer: PlanTimer, recorder: PlanRecorder, winners: PlanState, plans: Sequence[PlanState],
    rivals: Callable[[], Rivals], search: PlanDescent | None, until: Deadline,
) -> None:  # fmt: skip
    """Record the fastest of some plans and torch's operators, and search on in the time that is left.

    The comparison with torch seldom takes all the time that was kept for it.
    """
    best = _record_fastest(timer, recorder, winners, plans)
    is_faster = _compare_with_torch(recorder, best, rivals(), until)
    if is_faster and best and search and until is not NEVER:
        last = until.before(4 * timer.seconds * FINAL_ROUNDS / ROUNDS)
        if (faster := search.descend(best, group_first=True, until=last)) is not best:
            _record_fastest(timer, recorder, winners, [best, faster])


def _record_fastest(
    timer: PlanTimer, recorder: PlanRecorder, winners: PlanState, plans: Sequence[PlanState]
) -> PlanState | None:
    """Time some plans and the layers' winners in interleaved rounds; record and return the fastest plan.

    If the fastest is compiled, the fastest of the others is recorded under the key of machines without a compiler.
    """
    results = timer.compare([winners, *plans], FINAL_ROUNDS)
    if results is None:
        return None
    recorder.alone_us = results[0].median_us or math.inf
    timed = list(zip(plans, results[1:], strict=True))
    _record_of(recorder, recorder.network, timed)
    return min(timed, key=_median_us)[0]


def _compare_with_torch(recorder: PlanRecorder, best: PlanState | None, rivals: Rivals, until: Deadline) -> bool:
    """Time the fastest plan and torch's operators for the whole network in interleaved rounds; record the fastest.

    Inductor's code of a trial that did not end within the budget is not compared. Where there is no time for the
    comparison, the plan stays and no time of torch is recorded.

    Args:
        recorder: Writes plans.
        best: The fastest plan; None if there is none that runs.
        rivals: Compares them.
        until: Deadline of the comparison.

    Returns:
        Whether the plan is faster than torch's operators, as far as they were compared.
    """
    network = recorder.network
    whole = _whole_plans(network, recorder.known_whole())
    eager = [plan for plan, _ in whole if not _is_compiled(plan.sequence(network))]
    compiled = [plan for plan, one in whole if plan not in eager and one.us is not None and rivals.has_compiled]
    torchs = [*eager, *compiled]
    if not torchs or until.is_over:
        return not recorder.keeps_faster
    timer = network_timer(rivals.worker, network, until.clock)
    running = [plan for plan in torchs if timer.runs(plan)]
    compared = timer.compare_those_that_run([*([best] if best else []), *running], FINAL_ROUNDS)
    recorder.torch_us = _torch_us(network, compared)
    recorder.keeps_faster = recorder.keeps_faster and not rivals.has_compiled
    if compared and (best is None or compared[0][0] is best):
        _record_of(recorder, network, compared)
    return bool(compared) and min(compared, key=_median_us)[0] is best and not recorder.keeps_faster


def _record_of(recorder: PlanRecorder, network: Network, timed: Sequence[_Timed]) -> None:
    """Record the fastest plan and, if it is compiled, the fastest one that is not."""
    best = min(timed, key=_median_us)
    others = [one for one in timed if not _is_compiled(one[0].sequence(network))]
    if others and _is_compiled(best[0].sequence(network)):
        recorder.record_precompiled(*min(others, key=_median_us))
    if recorder.keeps_faster:
        recorder.record_if_faster(*best)
    else:
        recorder.record(*best)


def _result(us: float, throttled: int) -> Result:
    """Return a result from the time of a trial in another process, and from its rounds that were slowed down."""
    details = {THROTTLED: throttled} if throttled else {}
    return Result("ok", median_us=us, spread_us=0.0, samples_us=[us], details=details)


def _fastest_us(whole: _Whole) -> float:
    return min((one.us for _, one in whole if one.us is not None), default=math.inf)


def _median_us(timed: _Timed) -> float:
    return timed[1].median_us or math.inf


def _is_whole(plan: PlanState, network: Network) -> bool:
    """Return whether a plan runs the whole network on torch's operators."""
    return network.whole is not None and network.whole in plan.alternatives


def _is_compiled(sequence: Sequence[LayerAssignment]) -> bool:
    """Return whether a plan needs Inductor."""
    return any(one.candidate.compiled for one in sequence)


def _precompiled(plan: PlanState, known: Known) -> PlanState:
    """Return a plan with the fastest candidates that need no Inductor in place of those that do."""
    others = {
        name: next(one.candidate for one in known[name] if not one.candidate.compiled)  # torch's operator, at the least
        for name, assignment in plan.assignments.items()
        if assignment.candidate.compiled
    }
    return plan.with_assignments(LayerAssignment(name, other) for name, other in others.items())


def _whole_plans(network: Network, known: Known) -> list[tuple[PlanState, KnownCandidate]]:
    """Return a plan for each candidate that runs the whole network on torch's operators, and the candidate."""
    if not network.whole:
        return []
    (layer,) = network.whole.layers
    return [
        (PlanState({layer.name: LayerAssignment(layer.name, one.candidate)}, [network.whole]), one)
        for one in known[layer.name]
    ]


def _torch_us(network: Network, timed: Sequence[_Timed]) -> dict[str, float]:
    """Return the times of the whole network on torch's operators, by candidate."""
    return {
        str(plan.sequence(network)[0].candidate): result.median_us
        for plan, result in timed
        if _is_whole(plan, network) and result.median_us is not None
    }


def _candidates(known: Known) -> dict[str, list[Candidate]]:
    return {name: [one.candidate for one in each] for name, each in known.items()}
