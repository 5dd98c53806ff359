"""Tunes a network's plan inside its CUDA graph, by coordinate descent.

In a network a kernel finds another cache state and other neighbours than when it is timed alone, so the candidate that
wins alone need not win there. A plan is changed by moves of these kinds:

    TakeAlternative   take an alternative of the network, or give it up
    SwapKernel        run a layer on another candidate, or toggle its overlap with the kernel before it, or both
    Reorder           exchange two neighbouring layers that do not depend on each other. The graph stays the same, but
                      not its speed: the first of two branches continues where the kernel before it ran

In the first sweep all layers of one problem change together: that needs fewer rounds, and a gain in several layers
stands out of the noise. It tries the layers first, then the alternatives, then the order. Later sweeps try the
alternatives, each layer alone, and the order. All neighbours that a move reaches are timed with the current plan in
interleaved rounds; the fastest replaces the current plan if its gain is above the noise. The descent ends with a sweep
that changes nothing.

The time of a descent is limited. A move can gain no more than the time of its layers, so the moves of a sweep are made
in descending order of that time, and each may take its share of the time that is left: as many neighbours are timed as
fit, by the seconds that the comparisons took so far, those with the fastest candidates first. A move without time for
one neighbour is left out. Every improvement is recorded at once, so a run that is ended leaves the best plan so far.

Torch's operators for the whole network, eager and compiled by Inductor, are no part of the descent: with them taken, no
other move would change what runs. They are compared with the plans at the beginning and in the last rounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from autotune.core import NEVER, Deadline
from autotune.ir import Alternative, Layer, Network, NetworkKey, Problem
from autotune.measure import LayerAssignment, Result, Worker
from autotune.runtime import Candidate, candidate, faster_alternatives, plan_for_other_batch, shortlist
from autotune.tuner.library_candidates import operator_rows
from tuning_db import Store
from tuning_db.schema import Device, PlanRow

MAX_CANDIDATES = 12
"""Candidates of a layer that the first sweep tries: the fastest alone."""
KEPT_CANDIDATES = 4
"""Candidates of a layer that later sweeps try: the fastest in the network."""
MAX_LIBRARY_PLANS = 2
"""cuDNN plans of a layer that are tried in addition."""
MAX_SWEEPS = 3
ROUNDS = 7
"""Interleaved rounds per comparison."""
FINAL_ROUNDS = 21
"""Interleaved rounds of the last comparison, whose times are recorded."""
ORDER_WEIGHT = 0.05
"""Share of the network's time that a change of the order may gain."""
MAX_REQUEST_SECONDS = 10.0
"""Longest comparison: the measuring process is killed if it does not answer within 30 s."""
MAX_TIME_RATIO = 0.998
"""A plan replaces the current one if it takes less than this share of its time; a smaller gain may be noise."""


@dataclass(frozen=True)
class PlanState:
    """A plan during the search.

    Attributes:
        assignments: The candidate of each layer by its name, also of layers that the plan does not run.
        alternatives: The alternatives that the plan takes.
        order: Names of layers; the plan runs them in this order as far as their data dependencies allow.
    """

    assignments: Mapping[str, LayerAssignment]
    alternatives: Sequence[Alternative] = ()
    order: Sequence[str] = ()

    def layers(self, network: Network) -> tuple[Layer, ...]:
        """Return the layers that the plan runs, in their order."""
        return network.layers_with([alternative.name for alternative in self.alternatives], self.order)

    def sequence(self, network: Network) -> list[LayerAssignment]:
        """Return the candidates of the layers that the plan runs, in their order."""
        return [self.assignments[layer.name] for layer in self.layers(network)]

    def with_assignments(self, assignments: Iterable[LayerAssignment]) -> PlanState:
        """Return this plan with other candidates for some layers."""
        return replace(self, assignments={**self.assignments, **{one.layer: one for one in assignments}})


class Move(ABC):
    """A change of a plan along one coordinate."""

    @abstractmethod
    def neighbors(self, plan: PlanState) -> list[PlanState]:
        """Return the plans that this move reaches from `plan`; none if it does not apply."""


@dataclass(frozen=True)
class TakeAlternative(Move):
    """Takes an alternative, or gives it up if the plan has it.

    Taking it gives up the alternatives that replace one of the same layers. Its kernels are tried as they are in the
    plan, and all with overlap.
    """

    alternative: Alternative

    def neighbors(self, plan: PlanState) -> list[PlanState]:
        """Return two plans; none if a layer that they would run has no candidate."""
        own = [layer.name for layer in self.alternative.layers]
        if not plan.assignments.keys() >= set(own):
            return []
        taken = [one for one in plan.alternatives if one != self.alternative]
        if self.alternative in plan.alternatives:
            if not plan.assignments.keys() >= set(self.alternative.replaces):
                return []
        else:
            replaced = set(self.alternative.replaces)
            taken = [*(one for one in taken if replaced.isdisjoint(one.replaces)), self.alternative]
        toggled = replace(plan, alternatives=taken)
        overlapping = [replace(plan.assignments[name], overlap=plan.assignments[name].candidate.native) for name in own]
        return [toggled, toggled.with_assignments(overlapping)]


@dataclass(frozen=True)
class SwapKernel(Move):
    """Runs layers of one problem on another candidate, toggles their overlap, or does both.

    Attributes:
        layers: Names of the layers; all get the same candidate.
        candidates: The candidates to try, with overlap and without; only kernels of our own can overlap.
    """

    layers: Sequence[str]
    candidates: Sequence[Candidate]

    def neighbors(self, plan: PlanState) -> list[PlanState]:
        """Return a plan for each candidate with and without overlap, apart from the plan itself."""
        current = [plan.assignments[name] for name in self.layers]
        ways = [
            [LayerAssignment(name, candidate, overlap) for name in self.layers]
            for candidate, overlap in product(self.candidates, (False, True))
            if candidate.native or not overlap
        ]
        return [plan.with_assignments(way) for way in ways if way != current]


@dataclass(frozen=True)
class Reorder(Move):
    """Exchanges two neighbouring layers of which the second does not read what the first writes."""

    network: Network

    def neighbors(self, plan: PlanState) -> list[PlanState]:
        """Return a plan for each pair of such neighbours."""
        layers = plan.layers(self.network)
        names = [layer.name for layer in layers]
        return [
            replace(plan, order=[*names[:i], names[i + 1], names[i], *names[i + 2 :]])
            for i in range(len(names) - 1)
            if set(layers[i].writes).isdisjoint(layers[i + 1].reads)
        ]


class PlanTimer:
    """Times plans of a network, and knows how long that takes.

    Args:
        worker: Times plans on the device.
        network: The network.

    Attributes:
        seconds: Seconds of timing one plan by ROUNDS samples: binding, capture and rounds, in the requests so far.
    """

    def __init__(self, worker: Worker, network: Network, clock: Callable[[], float]) -> None:
        self._worker, self._network, self._clock = worker, network, clock
        self._layers: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Layer, ...]] = {}
        self.seconds = 0.0

    def layers(self, plan: PlanState) -> tuple[Layer, ...]:
        """Return the layers that a plan runs, in their order.

        Sorting the layers of a deep network takes longer than timing it, so it is done once for all plans that differ
        in their kernels only.
        """
        key = tuple(alternative.name for alternative in plan.alternatives), tuple(plan.order)
        if key not in self._layers:
            self._layers[key] = plan.layers(self._network)
        return self._layers[key]

    def compare(self, plans: Sequence[PlanState], rounds: int = ROUNDS) -> list[Result] | None:
        """Time plans in interleaved rounds; return None if one of them fails.

        Raises:
            OutOfTimeError: At the deadline of the worker.
        """
        started = self._clock()
        sequences = [[plan.assignments[layer.name] for layer in self.layers(plan)] for plan in plans]
        results = self._worker.time_networks(self._network, sequences, rounds)
        if any(result.median_us is None for result in results):
            return None
        if rounds == ROUNDS:
            taken = (self._clock() - started) / len(plans)
            self.seconds = (self.seconds + taken) / 2 if self.seconds else taken
        return results

    def num_plans(self, seconds: float) -> float:
        """Return how many plans can be compared within some seconds."""
        return min(seconds, MAX_REQUEST_SECONDS) / self.seconds if self.seconds else math.inf

    def runs(self, plan: PlanState) -> bool:
        """Return whether a plan can be timed."""
        return self.compare([plan], 1) is not None


class PlanDescent:
    """Coordinate descent over the plans of a network.

    Args:
        timer: Times plans.
        network: The network.
        candidates: The candidates of each layer by its name, the fastest alone first; a layer may have none.
        layer_us: Time of each layer in microseconds by its name.
        until: Deadline of the descent.
        on_improvement: Called with each plan that replaces the current one, and its result.
    """

    def __init__(
        self,
        timer: PlanTimer,
        network: Network,
        candidates: Mapping[str, Sequence[Candidate]],
        layer_us: Mapping[str, float],
        until: Deadline = NEVER,
        on_improvement: Callable[[PlanState, Result], object] = lambda *_: None,
    ) -> None:
        self._timer, self._network, self._until = timer, network, until
        self._candidates = {name: list(each) for name, each in candidates.items() if each}
        self._us, self._on_improvement = layer_us, on_improvement
        self._problem_of = {layer.name: layer.problem for layer in network.all_layers}

    def descend(self, plan: PlanState, group_first: bool) -> PlanState:
        """Return a plan that no move makes faster, or the best after MAX_SWEEPS sweeps or at the deadline.

        Args:
            plan: The plan to start from.
            group_first: Change all layers of one problem together in the first sweep.
        """
        for sweep in range(MAX_SWEEPS):
            start = plan
            together = group_first and sweep == 0
            names = [layer.name for layer in self._timer.layers(plan)]
            groups = self._same_problem(names) if together else [[name] for name in self._candidates]
            swaps, alternatives = self._swaps(groups), self._alternatives()
            order: tuple[float, Move] = (ORDER_WEIGHT * self._total(names), Reorder(self._network))
            plan = self._make_moves(
                [*swaps, *alternatives, order] if together else [*alternatives, *swaps, order], plan
            )
            if self._until.is_over or (plan is start and (not together or len(groups) == len(names))):
                break
        return plan

    def _swaps(self, groups: Sequence[Sequence[str]]) -> list[tuple[float, Move]]:
        """Return the moves that change the kernel of groups of layers, each with its weight, the heaviest first."""
        swaps: list[tuple[float, Move]] = [
            (self._total(group), SwapKernel(group, self._candidates[group[0]])) for group in groups
        ]
        return sorted(swaps, key=lambda swap: -swap[0])

    def _alternatives(self) -> list[tuple[float, Move]]:
        """Return the moves that take or give up alternatives, each with its weight, the heaviest first."""
        moves: list[tuple[float, Move]] = [
            (self._total(one.replaces), TakeAlternative(one)) for one in self._network.alternatives
        ]
        return sorted(moves, key=lambda move: -move[0])

    def _total(self, names: Iterable[str]) -> float:
        return sum(self._us.get(name, 0.0) for name in names)

    def _make_moves(self, moves: Sequence[tuple[float, Move]], plan: PlanState) -> PlanState:
        """Make moves, given with their weights, as far as there is time."""
        left = sum(weight for weight, _ in moves)
        for weight, move in moves:
            available = self._until.left
            seconds = available * weight / left if left > 0 and math.isfinite(available) else available
            plan = self._apply(move, plan, self._timer.num_plans(seconds) - 1)
            left -= weight
        return plan

    def _apply(self, move: Move, plan: PlanState, most: float) -> PlanState:
        """Return the fastest plan that a move reaches, or the plan itself if none is faster.

        Args:
            move: The move.
            plan: The current plan.
            most: Number of neighbours that there is time for.
        """
        if isinstance(move, SwapKernel) and not self._runs(move.layers, plan):
            return plan
        neighbors = move.neighbors(plan)
        neighbors = neighbors if math.isinf(most) else neighbors[: max(0, int(most))]
        if not neighbors:
            return plan
        timed = self._time_ratios(plan, neighbors)
        ratios = [ratio for ratio, _ in timed]
        if isinstance(move, SwapKernel):
            self._shorten_candidates(move, plan, neighbors, ratios)
        best = min(range(len(ratios)), key=ratios.__getitem__)
        ratio, result = timed[best]
        if result is None or ratio >= MAX_TIME_RATIO:
            return plan
        self._on_improvement(neighbors[best], result)
        return neighbors[best]

    def _runs(self, names: Sequence[str], plan: PlanState) -> bool:
        """Return whether a plan runs these layers."""
        return {layer.name for layer in self._timer.layers(plan)}.issuperset(names)

    def _shorten_candidates(
        self, move: SwapKernel, plan: PlanState, neighbors: Sequence[PlanState], ratios: Sequence[float]
    ) -> None:
        """Keep the KEPT_CANDIDATES of a move's layers with which the network is fastest, and those in use."""
        ranked = sorted(range(len(neighbors)), key=ratios.__getitem__)
        for name in move.layers:
            kept = [plan.assignments[name].candidate]
            for other in (neighbors[i].assignments[name].candidate for i in ranked):
                if other not in kept and len(kept) < KEPT_CANDIDATES:
                    kept.append(other)
            self._candidates[name] = kept

    def _same_problem(self, names: Sequence[str]) -> list[list[str]]:
        """Group layers by their problem; layers of one problem have the same candidates."""
        groups: dict[Problem, list[str]] = {}
        for name in names:
            groups.setdefault(self._problem_of[name], []).append(name)
        return list(groups.values())

    def _time_ratios(self, plan: PlanState, neighbors: Sequence[PlanState]) -> list[tuple[float, Result | None]]:
        """Return time of the neighbour / time of the plan and the result of each neighbour.

        The ratio of a neighbour that fails is infinite. The worker reports the failure of one plan as that of all plans
        of its request. So if a request fails, each neighbour is timed in a request of its own, as far as there is time.
        """
        groups = [list(neighbors)]
        timed: list[tuple[float, Result | None]] = []
        while groups:
            group = groups.pop(0)
            results = None if timed and self._until.is_over else self._timer.compare([plan, *group])
            if results:
                current, *others = [result.median_us or math.inf for result in results]
                timed += [(us / current, result) for us, result in zip(others, results[1:], strict=True)]
            elif len(group) > 1:
                groups = [[neighbor] for neighbor in group]
            else:
                timed.append((math.inf, None))
        return timed


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
            },
        )


def tune_network_plan(
    store: Store, device: Device, worker: Worker, network: Network, until: Deadline = NEVER, descend: bool = True
) -> PlanRow | None:
    """Find and record the fastest plan of a tuned network.

    The descent begins with the fastest of these plans: the winners of all layers, the same with the alternatives that
    are faster when each layer runs alone (many small gains, each below the noise), the fastest kernels of our own (a
    single operator of PyTorch or plan of cuDNN keeps the network from being one graph of our own, and no change of one
    layer shows whether that pays), and the plan in use, which is that of the database for this network or else for
    another batch size. A descent may end in a local minimum. So a second one starts from the plan in use, or, if the
    first one did, from the faster of the others. The plan in use takes part in the last comparison, so the result is
    never slower than the plan in use; nor is it slower than the whole network on torch's operators, eager or compiled.
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

    Returns:
        The recorded plan, or None if a layer has no candidate or the network cannot be timed. Its
        `details["alone_us"]` is the time of the network's plain layers with the winner of each;
        `details["alternatives"]` names the alternatives that it takes.
    """
    known = _known_candidates(store, device, network)
    if not all(known[layer.name] for layer in network.layers):
        return None
    timer = PlanTimer(worker, network, until.clock)
    in_use = _plan_in_use(store, device, network, known)
    recorder = _PlanRecorder(store, device, network, known)
    saved, torch_plans = store.plan(device, network.key), _whole_plans(network, known)
    recorder.best_us = saved.median_us if saved else math.inf
    recorder.torch_us = {str(plan.sequence(network)[0].candidate): us for plan, us in torch_plans if us is not None}
    for plan, us in torch_plans:
        if us is not None:  # the time of its trial; the last comparison decides, if there is time for it
            recorder.record_if_faster(plan, Result("ok", median_us=us, spread_us=0.0, samples_us=[us]))
    winners = PlanState({}).with_assignments(
        LayerAssignment(name, each[0].candidate) for name, each in known.items() if each
    )
    if not timer.runs(winners):
        return recorder.row
    parts = network.without_whole
    starts = [
        winners,
        *(plan for plan in _other_starts(store, device, parts, winners, known, descend) if timer.runs(plan)),
    ]
    if in_use and timer.runs(in_use):
        starts.append(in_use)
    results = timer.compare(starts)
    if results is None:
        return recorder.row
    recorder.alone_us = results[0].median_us or math.inf
    times = [result.median_us or math.inf for result in results]
    fastest = min(range(len(starts)), key=times.__getitem__)
    whole = [plan for plan, _ in torch_plans if until.is_over or timer.runs(plan)]
    if recorder.plan not in whole or times[fastest] < recorder.best_us:  # recorder.plan: None, or one of torch_plans
        recorder.best_us = times[fastest]
        if recorder.row or starts[fastest] is not in_use or saved is None:
            recorder.record(starts[fastest], results[fastest])
    last_seconds = (len(starts) + len(whole) + 2) * timer.seconds * FINAL_ROUNDS / ROUNDS
    layer_us = {name: each[0].us or 0.0 for name, each in known.items() if each}

    def descent(on_improvement: Callable[[PlanState, Result], object] = lambda *_: None) -> PlanDescent:
        return PlanDescent(timer, parts, _candidates(known), layer_us, until.before(last_seconds), on_improvement)

    found = [] if descend else starts
    if descend:
        places = [i for i in sorted(range(len(starts)), key=times.__getitem__) if not _is_whole(starts[i], network)]
        first, *others = places
        found.append(descent(recorder.record_if_faster).descend(starts[first], group_first=True))
        second = next((i for i in others if (starts[i] is in_use) != (starts[first] is in_use)), None)
        if second is not None:
            found.append(descent().descend(starts[second], group_first=starts[second] is not in_use))
        found += [plan for plan in starts if plan is in_use]
    without = [_precompiled(plan, known) for plan in found if _is_compiled(plan.sequence(network))]
    plans = [*found, *whole, *(plan for plan in without if not until.is_over and timer.runs(plan))]
    _record_fastest(timer, recorder, network, winners, plans, until)
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
    """Return the measured candidates of each layer; where there are none, PyTorch's operators."""
    known: dict[Problem, list[_KnownCandidate]] = {}
    for problem in dict.fromkeys(layer.problem for layer in network.all_layers):
        measured = shortlist(store.ranking(device, str(problem)), MAX_CANDIDATES, MAX_LIBRARY_PLANS)
        known[problem] = [
            _KnownCandidate(candidate(store, row.kernel, row.launch), row.kernel_id, row.median_us) for row in measured
        ]
        if not measured and "torch" in device.details:
            rows = operator_rows(store, problem, device.target, device.details["torch"])
            known[problem] = [_KnownCandidate(candidate(store, row, {}), row.id, None) for row in rows]
    return {layer.name: list(known[layer.problem]) for layer in network.all_layers}


def _record_fastest(
    timer: PlanTimer,
    recorder: _PlanRecorder,
    network: Network,
    winners: PlanState,
    plans: Sequence[PlanState],
    until: Deadline,
) -> None:
    """Time some plans and the layers' winners in interleaved rounds, and record the fastest plan, if there is time.

    If it is compiled, the fastest of the others is recorded under the key of machines without a compiler.
    """
    if until.left < (len(plans) + 1) * timer.seconds * FINAL_ROUNDS / ROUNDS:
        return
    results = timer.compare([winners, *plans], FINAL_ROUNDS)
    if results is None:
        return
    recorder.alone_us = results[0].median_us or math.inf
    timed = list(zip(plans, results[1:], strict=True))
    recorder.torch_us = _torch_us(network, timed)
    best = min(timed, key=_median_us)
    others = [one for one in timed if not _is_compiled(one[0].sequence(network))]
    if others and _is_compiled(best[0].sequence(network)):
        recorder.record_precompiled(*min(others, key=_median_us))
    recorder.record(*best)


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


def _plan_in_use(store: Store, device: Device, network: Network, known: _Known) -> PlanState | None:
    """Return the plan that the network would run now, and add its candidates to those that are known."""
    own = store.plan(device, network.key)
    found = (own, network) if own else plan_for_other_batch(store, device, network)
    if found is None:
        return None
    saved, planned_network = found
    if any(choice["layer"] not in known for choice in saved.choices):
        return None
    assignments = {name: LayerAssignment(name, each[0].candidate) for name, each in known.items() if each}
    for choice in saved.choices:
        name, kernel = choice["layer"], store.kernel(choice["kernel"])
        us = choice["us"] if planned_network is network else None  # else it was timed at another batch size
        one = _KnownCandidate(candidate(store, kernel, choice["launch"]), kernel.id, us)
        if all(one.candidate != other.candidate for other in known[name]):
            known[name].append(one)
        assignments[name] = LayerAssignment(name, one.candidate, choice["overlap"])
    names = saved.details.get("alternatives", [])
    return PlanState(
        assignments,
        alternatives=[alternative for alternative in network.alternatives if alternative.name in names],
        order=[choice["layer"] for choice in saved.choices],
    )


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
