"""Tunes a network's plan inside its CUDA graph, by coordinate descent.

In a network a kernel finds another cache state and other neighbours than when it is timed alone, so the candidate that
wins alone need not win there. A plan is changed by moves of these kinds:

    TakeAlternative   take an alternative of the network, or give it up
    SwapKernel        run a layer on another candidate, or toggle its overlap with the kernel before it, or both
    Reorder           exchange two neighbouring layers that do not depend on each other. The graph stays the same, but
                      not its speed: the first of two branches continues where the kernel before it ran

A sweep tries all alternatives, then all layers, then the order. All neighbours that a move reaches are timed with the
current plan in interleaved rounds; the fastest replaces the current plan if its gain is above the noise. In the first
sweep all layers of one problem change together: that needs fewer rounds, and a gain in several layers stands out of the
noise. The descent ends with a sweep that changes nothing.

Torch's operators for the whole network, eager and compiled by Inductor, are no part of the descent: with them taken, no
other move would change what runs. They are compared with its result in the last rounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from autotune.ir import Alternative, Layer, Network, NetworkKey, Problem
from autotune.measure import LayerAssignment, Result, Worker
from autotune.runtime import Candidate, candidate, faster_alternatives, plan_for_other_batch, shortlist
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


class PlanDescent:
    """Coordinate descent over the plans of a network.

    Args:
        worker: Times plans on the device.
        network: The network.
        candidates: The candidates of each layer by its name, the fastest alone first; a layer may have none.
    """

    def __init__(self, worker: Worker, network: Network, candidates: Mapping[str, Sequence[Candidate]]) -> None:
        self._worker, self._network = worker, network
        self._candidates = {name: list(each) for name, each in candidates.items() if each}
        self._problem_of = {layer.name: layer.problem for layer in network.all_layers}

    def first_plan(self) -> PlanState:
        """Return the plan of the layers' winners, or that of the fastest kernels of our own if it is faster.

        A single operator of PyTorch or plan of cuDNN keeps the network from being one graph of our own, and no change
        of one layer shows whether that pays. So both plans are compared as a whole.
        """
        own = [
            LayerAssignment(name, next((one for one in each if one.native), each[0]))
            for name, each in self._candidates.items()
        ]
        winners = [LayerAssignment(name, each[0]) for name, each in self._candidates.items()]
        plan, fastest_alone = PlanState({}).with_assignments(own), PlanState({}).with_assignments(winners)
        if plan.sequence(self._network) == fastest_alone.sequence(self._network):
            return plan
        return self._fastest(plan, [fastest_alone], self._time_ratios(plan, [fastest_alone]))

    def descend(self, plan: PlanState, group_first: bool) -> PlanState:
        """Return a plan that no move makes faster, or the best after MAX_SWEEPS sweeps.

        Args:
            plan: The plan to start from.
            group_first: Change all layers of one problem together in the first sweep.
        """
        for sweep in range(MAX_SWEEPS):
            start = plan
            for alternative in self._network.alternatives:
                plan = self._apply(TakeAlternative(alternative), plan)
            names = [layer.name for layer in plan.layers(self._network)]
            groups = self._same_problem(names) if group_first and sweep == 0 else [[name] for name in names]
            for group in groups:
                plan = self._apply(SwapKernel(group, self._candidates[group[0]]), plan)
            plan = self._apply(Reorder(self._network), plan)
            if plan is start and len(groups) == len(names):
                break
        return plan

    def _apply(self, move: Move, plan: PlanState) -> PlanState:
        """Return the fastest plan that a move reaches, or the plan itself if none is faster."""
        neighbors = move.neighbors(plan)
        if not neighbors:
            return plan
        ratios = self._time_ratios(plan, neighbors)
        if isinstance(move, SwapKernel):
            self._shorten_candidates(move, plan, neighbors, ratios)
        return self._fastest(plan, neighbors, ratios)

    def _fastest(self, plan: PlanState, neighbors: Sequence[PlanState], ratios: Sequence[float]) -> PlanState:
        best = min(ratios)
        return neighbors[ratios.index(best)] if best < MAX_TIME_RATIO else plan

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

    def _time_ratios(self, plan: PlanState, neighbors: Sequence[PlanState]) -> list[float]:
        """Return time of the neighbour / time of the plan, for each neighbour; infinity for one that fails.

        The worker reports the failure of one plan as that of all plans of its request. So if a request fails, each
        neighbour is timed in a request of its own.
        """
        ratios = self._compare(plan, neighbors)
        if ratios is None and len(neighbors) > 1:
            alone = [self._compare(plan, [neighbor]) for neighbor in neighbors]
            return [math.inf if ratio is None else ratio[0] for ratio in alone]
        return [math.inf] * len(neighbors) if ratios is None else ratios

    def _compare(self, plan: PlanState, neighbors: Sequence[PlanState]) -> list[float] | None:
        """Return the ratios of one request to the worker, or None if it failed."""
        sequences = [each.sequence(self._network) for each in (plan, *neighbors)]
        current, *results = self._worker.time_networks(self._network, sequences, ROUNDS)
        if current.median_us is None:
            return None
        return [(result.median_us or math.inf) / current.median_us for result in results]


@dataclass(frozen=True)
class _KnownCandidate:
    """A candidate of a layer, the id of its kernel, and its time alone in microseconds."""

    candidate: Candidate
    kernel_id: int
    us: float | None


_Known = dict[str, list[_KnownCandidate]]
"""The candidates of each layer by its name, the fastest alone first."""


def tune_network_plan(
    store: Store, device: Device, worker: Worker, network: Network, descend: bool = True
) -> PlanRow | None:
    """Find and record the fastest plan of a tuned network.

    A descent may end in a local minimum. So a second one starts from the plan in use: that of the database for this
    network or else for another batch size. The plan in use takes part in the last comparison, so the result is never
    slower than the plan in use; nor is it slower than the whole network on torch's operators, eager or compiled. If the
    fastest plan is compiled by Inductor, the fastest one that is not is recorded, too, for machines without a compiler.

    Args:
        store: The database with the measurements of all layers.
        device: The device.
        worker: Times plans on that device.
        network: The network.
        descend: Whether to search. Otherwise the winners of the layers, with the alternatives that are faster, are
            compared with torch's operators for the whole network.

    Returns:
        The recorded plan, or None if a layer has no candidate or the network cannot be timed. Its
        `details["alone_us"]` is the time of the network's plain layers with the winner of each, in the same rounds;
        `details["alternatives"]` names the alternatives that it takes.
    """
    known: _Known = {
        layer.name: [
            _KnownCandidate(candidate(store, row.kernel, row.launch), row.kernel_id, row.median_us)
            for row in shortlist(store.ranking(device, str(layer.problem)), MAX_CANDIDATES, MAX_LIBRARY_PLANS)
        ]
        for layer in network.all_layers
    }
    if not all(known[layer.name] for layer in network.layers):
        return None
    winners = [LayerAssignment(layer.name, known[layer.name][0].candidate) for layer in network.layers]
    if not _runs(worker, network, winners):
        return None
    parts = network.without_whole
    if descend:
        descent = PlanDescent(worker, parts, _candidates(known))
        plans = [descent.descend(descent.first_plan(), group_first=True)]
    else:
        taken = faster_alternatives(store, device, parts)
        winner = PlanState({}, [one for one in parts.alternatives if one.name in taken])
        plans = [
            winner.with_assignments(LayerAssignment(name, each[0].candidate) for name, each in known.items() if each)
        ]
    in_use = _plan_in_use(store, device, network, known)
    if in_use and _runs(worker, network, in_use.sequence(network)):
        plans.append(in_use)
        if descend and network.whole not in in_use.alternatives:
            descent = PlanDescent(worker, parts, _candidates(known))
            plans.append(descent.descend(in_use, group_first=False))
    precompiled = [_precompiled(plan, known) for plan in plans if _is_compiled(plan.sequence(network))]
    others = [*precompiled, *_whole_plans(network, known)]
    plans += [plan for plan in others if _runs(worker, network, plan.sequence(network))]
    return _record_fastest(store, device, worker, network, known, winners, plans)


def _record_fastest(
    store: Store,
    device: Device,
    worker: Worker,
    network: Network,
    known: _Known,
    winners: Sequence[LayerAssignment],
    plans: Sequence[PlanState],
) -> PlanRow | None:
    """Time some plans and the layers' winners in interleaved rounds and record the fastest plan.

    If it is compiled, the fastest of the others is recorded under the key of machines without a compiler.
    """
    sequences = [winners, *(plan.sequence(network) for plan in plans)]
    alone, *results = worker.time_networks(network, sequences, FINAL_ROUNDS)
    timed = [(plan, result) for plan, result in zip(plans, results, strict=True) if result.median_us is not None]
    if alone.median_us is None or not timed:
        return None

    def record(identity: NetworkKey, among: Sequence[tuple[PlanState, Result]]) -> PlanRow:
        plan, result = min(among, key=lambda one: one[1].median_us or math.inf)
        return store.put_plan(
            device_id=device.id,
            network=str(identity),
            median_us=result.median_us,
            spread_us=result.spread_us,
            choices=[_choice(assignment, known[assignment.layer]) for assignment in plan.sequence(network)],
            details={
                "alone_us": alone.median_us,
                "samples_us": result.samples_us,
                "alternatives": [alternative.name for alternative in plan.alternatives],
                "torch_us": _torch_us(network, timed),
            },
        )

    precompiled = [(plan, result) for plan, result in timed if not _is_compiled(plan.sequence(network))]
    best = min(timed, key=lambda one: one[1].median_us or math.inf)
    if precompiled and _is_compiled(best[0].sequence(network)):
        record(network.identity.precompiled, precompiled)
    return record(network.identity, timed)


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


def _whole_plans(network: Network, known: _Known) -> list[PlanState]:
    """Return a plan for each candidate that runs the whole network on torch's operators."""
    if not network.whole:
        return []
    (layer,) = network.whole.layers
    return [
        PlanState({layer.name: LayerAssignment(layer.name, one.candidate)}, [network.whole])
        for one in known[layer.name]
    ]


def _torch_us(network: Network, timed: Sequence[tuple[PlanState, Result]]) -> dict[str, float]:
    """Return the times of the whole network on torch's operators, by candidate."""
    return {
        str(plan.sequence(network)[0].candidate): result.median_us
        for plan, result in timed
        if network.whole and network.whole in plan.alternatives and result.median_us is not None
    }


def _runs(worker: Worker, network: Network, assignments: Sequence[LayerAssignment]) -> bool:
    """Return whether a plan can be timed."""
    return worker.time_networks(network, [assignments], 1)[0].median_us is not None


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
