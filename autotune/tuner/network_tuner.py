"""Chooses the plan of a network: a candidate for each layer, the alternatives that are taken, and the order.

In a network a kernel finds another cache state and other neighbours than when it is timed alone, so the candidate that
wins alone need not win there. The search is a coordinate descent (plan_descent.py) from several plans.

Torch's operators for the whole network, eager and compiled by Inductor, are no part of the descent: with them taken, no
other move would change what runs. They were timed by the process that compiled them, and compiling a deep network once
more takes longer than all else here. So only those that are about as fast as the fastest plan are bound again, and
compared with it in interleaved rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace

from autotune.core import NEVER, Deadline, timeline
from autotune.ir import Network, NetworkKey, Problem
from autotune.measure import LayerAssignment, Result, Worker
from autotune.runtime import (
    Candidate,
    activation_places,
    candidate,
    faster_alternatives,
    plan_for_other_batch,
    shortlist,
)
from autotune.tuner.copied_plans import CopiedPlan
from autotune.tuner.library_candidates import operator_rows
from autotune.tuner.plan_descent import ROUNDS, PlanDescent, PlanTimer
from autotune.tuner.plan_moves import PlanState
from autotune.tuner.trial_queue import record_result
from tuning_db import Store, launch_text
from tuning_db.schema import Device, PlanRow

MAX_CANDIDATES = 12
"""Candidates of a layer that are tried: the fastest alone."""
MAX_LIBRARY_PLANS = 2
"""cuDNN plans of a layer that are tried in addition."""
FINAL_ROUNDS = 21
"""Interleaved rounds of the last comparison, whose times are recorded."""
CLOSE = 1.1
"""Two times of different processes that differ by more than this factor need no comparison in interleaved rounds."""


@dataclass(frozen=True)
class _KnownCandidate:
    """A candidate of a layer, the id of its kernel, and its time alone in microseconds."""

    candidate: Candidate
    kernel_id: int
    us: float | None


_Known = dict[str, list[_KnownCandidate]]
"""The candidates of each layer by its name, the fastest alone first."""


class _PlanRecorder:
    """Writes the plan of a run to the database; each plan replaces the one that it wrote before.

    Args:
        store: The database.
        device: The device.
        network: The network.
        known: The candidates of its layers.

    Attributes:
        row: The plan that was written last.
        plan: The same as it was given.
        best_us: Time of the fastest plan so far in microseconds; infinite if there is none.
        alone_us: Time of the network with the winner of each layer in microseconds; 0 if it is not known.
        torch_us: Times of the whole network on torch's operators in microseconds, by candidate.
    """

    def __init__(self, store: Store, device: Device, network: Network, known: _Known) -> None:
        self._store, self._device, self._network, self._known = store, device, network, known
        self.row: PlanRow | None = None
        self.plan: PlanState | None = None
        self.best_us = math.inf
        self.alone_us = 0.0
        self.torch_us: dict[str, float] = {}

    def record(self, plan: PlanState, result: Result) -> None:
        """Write a plan and its result."""
        self.row = self._written(self._network.identity, plan, result, self.row)
        self.plan, self.best_us = plan, result.median_us or math.inf
        if result.median_us:
            timeline.count(f"us of the network at batch {self._network.batch}", result.median_us)

    def record_if_faster(self, plan: PlanState, result: Result) -> None:
        """Write a plan and its result if it is the fastest so far."""
        if (result.median_us or math.inf) < self.best_us:
            self.record(plan, result)

    def record_precompiled(self, plan: PlanState, result: Result) -> None:
        """Write the plan for machines without a compiler."""
        self._written(self._network.identity.precompiled, plan, result, None)

    def _written(self, identity: NetworkKey, plan: PlanState, result: Result, before: PlanRow | None) -> PlanRow:
        return self._store.replace_plan(
            before,
            device_id=self._device.id,
            network=str(identity),
            median_us=result.median_us,
            spread_us=result.spread_us,
            choices=[_choice(one, self._known[one.layer]) for one in plan.sequence(self._network)],
            details={
                "alone_us": self.alone_us,
                "samples_us": result.samples_us,
                "alternatives": [alternative.name for alternative in plan.alternatives],
                "torch_us": self.torch_us,
                "memory": self._memory(plan),
            },
        )

    def _memory(self, plan: PlanState) -> list[list[object]]:
        """Return the places of the activations, each as the values of an ActivationPlace."""
        layers = {layer.name: layer for layer in self._network.all_layers}
        running = [layers[one.layer] for one in plan.sequence(self._network)]
        return [list(astuple(place)) for place in activation_places(running, self._network.callers)]


def tune_network_plan(
    store: Store,
    device: Device,
    worker: Worker,
    network: Network,
    until: Deadline = NEVER,
    descend: bool = True,
    tell: Callable[[str], object] = lambda _: None,
    whole_seconds: float = 0.0,
    copied: CopiedPlan | None = None,
) -> PlanRow | None:
    """Find and record the fastest plan of a tuned network.

    The descent begins with the fastest of these plans: the winners of all layers, the same with the alternatives that
    are faster when each layer runs alone (many small gains, each below the noise), the fastest kernels of our own (a
    single operator of PyTorch or plan of cuDNN keeps the network from being one graph of our own, and no change of one
    layer shows whether that pays), and the plan in use, which is that of the database for this network, or else of
    another database, or else for another batch size. A descent may end in a local minimum. So a second one starts from
    the plan in use, or, if the first one did, from the faster of the others. The plan in use takes part in the last
    comparison, so the result is never slower than the plan in use; nor is it slower than the whole network on torch's
    operators, eager or compiled.
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
        whole_seconds: Time of compiling torch's operators for the whole network. If less is left, the times that were
            measured by the process that compiled them are compared.
        copied: The plan of another database.

    Returns:
        The recorded plan, or None if a layer has no candidate or the network cannot be timed. Its
        `details["alone_us"]` is the time of the network's plain layers with the winner of each;
        `details["alternatives"]` names the alternatives that it takes.
    """
    known = _known_candidates(store, device, network)
    if not all(known[layer.name] for layer in network.layers):
        return None
    timer = PlanTimer(worker, network, until.clock)
    in_use = _plan_in_use(store, device, worker, network, known, copied, until)
    recorder = _PlanRecorder(store, device, network, known)
    saved, whole = store.plan(device, network.key), _whole_plans(network, known)
    recorder.best_us = saved.median_us if saved else math.inf
    recorder.torch_us = {str(plan.sequence(network)[0].candidate): us for plan, us in whole if us is not None}
    for plan, us in whole:
        if us is not None and saved is None:  # else a run that ends now keeps the plan in use
            recorder.record_if_faster(plan, _result(us))
    winners = PlanState({}).with_assignments(
        LayerAssignment(name, each[0].candidate) for name, each in known.items() if each
    )
    first_results = timer.compare([winners], 1)
    if first_results is None:
        tell(f"the plan of the network is not tuned: its fastest kernels do not run together: {timer.fault}")
        return recorder.row
    if saved is None:
        recorder.record_if_faster(winners, first_results[0])  # for a run that ends before the comparisons
    parts = network.without_whole
    starts = [
        winners,
        *(plan for plan in _other_starts(store, device, parts, winners, known, descend) if timer.runs(plan)),
    ]
    if in_use and not _is_whole(in_use, network) and timer.runs(in_use):
        starts.append(in_use)
    results = timer.compare(starts)
    if results is None:
        return recorder.row
    recorder.alone_us = results[0].median_us or math.inf
    times = [result.median_us or math.inf for result in results]
    fastest = min(range(len(starts)), key=times.__getitem__)
    if times[fastest] < _fastest_us(whole):
        recorder.best_us = times[fastest]
        if recorder.row or starts[fastest] is not in_use or saved is None:
            recorder.record(starts[fastest], results[fastest])
    last_seconds = (len(starts) + 3) * timer.seconds * FINAL_ROUNDS / ROUNDS
    layer_us = {name: each[0].us or 0.0 for name, each in known.items() if each}

    def descent(on_improvement: Callable[[PlanState, Result], object] = lambda *_: None) -> PlanDescent:
        return PlanDescent(timer, parts, _candidates(known), layer_us, until.before(last_seconds), on_improvement)

    found = [] if descend else starts
    if descend:
        first, *others = sorted(range(len(starts)), key=times.__getitem__)
        found.append(descent(recorder.record_if_faster).descend(starts[first], group_first=True))
        second = next((i for i in others if (starts[i] is in_use) != (starts[first] is in_use)), None)
        if second is not None:
            found.append(descent().descend(starts[second], group_first=starts[second] is not in_use))
        found += [plan for plan in starts if plan is in_use]
    without = [_precompiled(plan, known) for plan in found if _is_compiled(plan.sequence(network))]
    plans = [*found, *(plan for plan in without if not until.is_over and timer.runs(plan))]
    if until.left >= (len(plans) + 1) * timer.seconds * FINAL_ROUNDS / ROUNDS:
        _record_fastest(timer, recorder, network, winners, plans, whole, until.before(whole_seconds))
    return recorder.row


def _other_starts(
    store: Store, device: Device, parts: Network, winners: PlanState, known: _Known, descend: bool
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
    )
    if own.sequence(parts) != winners.sequence(parts):
        yield own
        if faster:
            yield replace(own, alternatives=faster)


def _known_candidates(store: Store, device: Device, network: Network) -> _Known:
    """Return the measured candidates of each layer; where there are none, PyTorch's operators.

    Layers of one problem share a list, so that a candidate that is added for one of them is known for all.
    """
    known: dict[Problem, list[_KnownCandidate]] = {}
    for problem in dict.fromkeys(layer.problem for layer in network.all_layers):
        measured = shortlist(store.ranking(device, str(problem)), MAX_CANDIDATES, MAX_LIBRARY_PLANS)
        known[problem] = [
            _KnownCandidate(candidate(store, row.kernel, row.launch), row.kernel_id, row.median_us) for row in measured
        ]
        if not measured and "torch" in device.details:
            rows = operator_rows(store, problem, device.target, device.details["torch"])
            known[problem] = [_KnownCandidate(candidate(store, row, {}), row.id, None) for row in rows]
    return {layer.name: known[layer.problem] for layer in network.all_layers}


def _record_fastest(
    timer: PlanTimer,
    recorder: _PlanRecorder,
    network: Network,
    winners: PlanState,
    plans: Sequence[PlanState],
    whole: Sequence[tuple[PlanState, float | None]],
    compiling: Deadline,
) -> None:
    """Time some plans and the layers' winners in interleaved rounds, and record the fastest plan.

    Torch's operators for the whole network that are about as fast as the fastest plan are compared with it after that.
    If the fastest of all is compiled, the fastest of the others is recorded under the key of machines without a
    compiler.

    Args:
        timer: Times plans.
        recorder: Writes plans.
        network: The network.
        winners: The plan with the winner of each layer.
        plans: The plans.
        whole: The plans of the whole network on torch's operators, and their times in another process.
        compiling: Deadline for the start of compiling them once more.
    """
    results = timer.compare([winners, *plans], FINAL_ROUNDS)
    if results is None:
        return
    recorder.alone_us = results[0].median_us or math.inf
    timed = list(zip(plans, results[1:], strict=True))
    best = min(timed, key=_median_us)
    known = [(plan, _result(us)) for plan, us in whole if us is not None]
    _record_of(recorder, network, [*timed, *known])
    close = [plan for plan, us in whole if us is None or us < CLOSE * _median_us(best)]
    if not close or compiling.is_over:
        return
    running = [plan for plan in close if timer.runs(plan)]
    again = timer.compare([best[0], *running], FINAL_ROUNDS) if running else None
    compared = list(zip([best[0], *running], again, strict=True)) if again else [best]
    known = [one for one in known if one[0] not in close]
    recorder.torch_us = _torch_us(network, [*compared, *known])
    _record_of(recorder, network, [*compared, *(one for one in timed if one is not best), *known])


def _record_of(recorder: _PlanRecorder, network: Network, timed: Sequence[tuple[PlanState, Result]]) -> None:
    """Record the fastest plan and, if it is compiled, the fastest one that is not."""
    best = min(timed, key=_median_us)
    others = [one for one in timed if not _is_compiled(one[0].sequence(network))]
    if others and _is_compiled(best[0].sequence(network)):
        recorder.record_precompiled(*min(others, key=_median_us))
    recorder.record(*best)


def _result(us: float) -> Result:
    """Return a result from the time of a trial in another process."""
    return Result("ok", median_us=us, spread_us=0.0, samples_us=[us])


def _fastest_us(whole: Sequence[tuple[PlanState, float | None]]) -> float:
    return min((us for _, us in whole if us is not None), default=math.inf)


def _median_us(timed: tuple[PlanState, Result]) -> float:
    return timed[1].median_us or math.inf


def _is_whole(plan: PlanState, network: Network) -> bool:
    """Return whether a plan runs the whole network on torch's operators."""
    return network.whole is not None and network.whole in plan.alternatives


def _is_compiled(sequence: Sequence[LayerAssignment]) -> bool:
    """Return whether a plan needs Inductor."""
    return any(one.candidate.compiled for one in sequence)


def _precompiled(plan: PlanState, known: _Known) -> PlanState:
    """Return a plan with the fastest candidates that need no Inductor in place of those that do."""
    others = {
        name: next(one.candidate for one in known[name] if not one.candidate.compiled)  # torch's operator, at the least
        for name, assignment in plan.assignments.items()
        if assignment.candidate.compiled
    }
    return plan.with_assignments(LayerAssignment(name, other) for name, other in others.items())


def _whole_plans(network: Network, known: _Known) -> list[tuple[PlanState, float | None]]:
    """Return a plan for each candidate that runs the whole network on torch's operators, and the time of its trial."""
    if not network.whole:
        return []
    (layer,) = network.whole.layers
    return [
        (PlanState({layer.name: LayerAssignment(layer.name, one.candidate)}, [network.whole]), one.us)
        for one in known[layer.name]
    ]


def _torch_us(network: Network, timed: Sequence[tuple[PlanState, Result]]) -> dict[str, float]:
    """Return the times of the whole network on torch's operators, by candidate."""
    return {
        str(plan.sequence(network)[0].candidate): result.median_us
        for plan, result in timed
        if _is_whole(plan, network) and result.median_us is not None
    }


def _candidates(known: _Known) -> dict[str, list[Candidate]]:
    return {name: [one.candidate for one in each] for name, each in known.items()}


def _plan_in_use(
    store: Store,
    device: Device,
    worker: Worker,
    network: Network,
    known: _Known,
    copied: CopiedPlan | None,
    until: Deadline,
) -> PlanState | None:
    """Return the plan that the network would run now, and add its candidates to those that are known.

    A plan for another batch size, or of another database, names kernels that were verified elsewhere. Those that were
    not verified on their layer's problem are verified now; a layer whose kernel is not right runs on its winner.
    """
    own = store.plan(device, network.key) or copied
    found = (own, network) if own else plan_for_other_batch(store, device, network)
    if found is None:
        return None
    saved, planned_network = found
    if any(choice["layer"] not in known for choice in saved.choices):
        return None
    assignments = {name: LayerAssignment(name, each[0].candidate) for name, each in known.items() if each}
    problems = {layer.name: layer.problem for layer in network.all_layers}
    for choice in saved.choices:
        name, kernel = choice["layer"], store.kernel(choice["kernel"])
        us = choice["us"] if planned_network is network else None  # else it was timed at another batch size
        one = _KnownCandidate(candidate(store, kernel, choice["launch"]), kernel.id, us)
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


def _is_right(store: Store, device: Device, worker: Worker, problem: Problem, one: _KnownCandidate) -> bool:
    """Return whether a candidate is right on a problem; one of ours that was not tried there is tried now."""
    if not one.candidate.native:
        return True  # an operator of torch; a plan of cuDNN refuses any problem but its own
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


def _choice(assignment: LayerAssignment, known: Sequence[_KnownCandidate]) -> dict[str, object]:
    """Return a layer's entry in the database's plan."""
    one = next(one for one in known if one.candidate == assignment.candidate)
    return {
        "layer": assignment.layer,
        "kernel": one.kernel_id,
        "launch": dict(assignment.candidate.launch),
        "us": one.us,
        "overlap": assignment.overlap,
    }
