"""Settles a network's candidates inside its CUDA graph: coordinate descent from each layer's winner.

First the network's alternatives: each is taken or given up as the whole network's time says. Then for one layer at a
time its finalists, and the choice to let it overlap with the kernel before it, are timed in the whole network against
the plan so far, in interleaved rounds; what is faster by more than the noise is kept. In the first sweep all
layers with the same problem change together: that takes fewer rounds, and what is gained stands out of the noise. It
ends when a sweep over alternatives and layers changes nothing.

Last comes the order of layers that do not wait for each other: a graph's branches are the same in any order, and still
not as fast, for the first of two branches goes on where the kernel before it ran.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.ir import Alternative, Network, Problem
from autotune.measure import Pick, Worker
from autotune.runtime import Candidate, candidate, plan_for_other_batch, shortlist
from tuning_db import Store
from tuning_db.schema import Device, PlanRow

CANDIDATES, KEPT = 12, 4
"""Candidates of a layer that are tried, and how many of them again once all layers were settled."""
PLANS = 2
"""Plans of cuDNN that are tried beside them."""
SWEEPS = 3
ROUNDS = 7
GAIN = 0.998
"""A plan must take at most this share of the time of the one that it replaces."""


@dataclass(frozen=True)
class _Known:
    """A candidate of a layer, its kernel's number and its time alone."""

    candidate: Candidate
    kernel: int
    us: float | None


@dataclass(frozen=True)
class _Plan:
    """A pick for every layer, taken or not; the alternatives taken; and layers' names in the order to keep to."""

    picks: Mapping[str, Pick]
    taken: Sequence[Alternative] = ()
    order: Sequence[str] = ()


def settle_network(store: Store, device: Device, worker: Worker, network: Network) -> PlanRow | None:
    """Find and record the network's fastest plan; None where it cannot be timed.

    Descends from the layers' winners and, since that may end where no single change helps, also from the plan that the
    database has, or else from that of another batch size. That plan itself is among those that are compared in the end:
    whoever ran as it does not get a slower one.

    details["alone_us"] of the result is the time of the plainest layers with the winner of each, in the same rounds;
    details["alternatives"] names those that were taken.
    """
    known = {
        layer.name: [
            _Known(candidate(store, row.kernel, row.launch), row.kernel_id, row.median_us)
            for row in shortlist(store.ranking(device, str(layer.problem)), CANDIDATES, PLANS)
        ]
        for layer in network.all_layers
    }
    if not all(known[layer.name] for layer in network.layers):
        return None
    alone = [Pick(layer.name, known[layer.name][0].candidate) for layer in network.layers]
    if worker.plans(network, [alone], 1)[0].median_us is None:
        return None
    ends = [_Settling(worker, network, _options(known)).descend()]
    start = _start(store, device, network, known)
    if start and worker.plans(network, [_layers(network, start)], 1)[0].median_us is not None:
        ends += [start, _Settling(worker, network, _options(known), start).descend()]
    before, *results = worker.plans(network, [alone, *(_layers(network, end) for end in ends)], 3 * ROUNDS)
    times = [result.median_us or math.inf for result in results]
    best = times.index(min(times))
    end, plan = results[best], ends[best]
    if before.median_us is None or end.median_us is None or end.spread_us is None:
        return None
    return store.put_plan(
        device_id=device.id,
        network=network.key,
        median_us=end.median_us,
        spread_us=end.spread_us,
        choices=[
            _choice(pick, next(one for one in known[pick.layer] if one.candidate == pick.candidate))
            for pick in _layers(network, plan)
        ],
        details={
            "alone_us": before.median_us,
            "samples_us": end.samples_us,
            "alternatives": [alternative.name for alternative in plan.taken],
        },
    )


def _options(known: Mapping[str, Sequence[_Known]]) -> dict[str, list[Candidate]]:
    return {name: [one.candidate for one in each] for name, each in known.items()}


def _layers(network: Network, plan: _Plan) -> list[Pick]:
    """The picks of the layers that run, in order."""
    return [plan.picks[layer.name] for layer in network.layers_with([one.name for one in plan.taken], plan.order)]


def _start(store: Store, device: Device, network: Network, known: dict[str, list[_Known]]) -> _Plan | None:
    """The plan that would run now, as one to start from; what it has of other candidates becomes known."""
    own = store.plan(device, network.key)
    found = (own, network) if own else plan_for_other_batch(store, device, network)
    if found is None:
        return None
    saved, timed = found
    if any(choice["layer"] not in known for choice in saved.choices):
        return None
    picks = {name: Pick(name, each[0].candidate) for name, each in known.items() if each}
    for choice in saved.choices:
        name, kernel = choice["layer"], store.kernel(choice["kernel"])
        one = _Known(candidate(store, kernel, choice["launch"]), kernel.id, choice["us"] if timed is network else None)
        if all(one.candidate != other.candidate for other in known[name]):
            known[name].append(one)
        picks[name] = Pick(name, one.candidate, choice["overlap"])
    names = saved.details.get("alternatives", [])
    taken = [alternative for alternative in network.alternatives if alternative.name in names]
    return _Plan(picks, taken, [choice["layer"] for choice in saved.choices])


def _choice(pick: Pick, known: _Known) -> dict[str, object]:
    return {
        "layer": pick.layer,
        "kernel": known.kernel,
        "launch": dict(pick.candidate.launch),
        "us": known.us,
        "overlap": pick.overlap,
    }


@dataclass
class _Settling:
    """The plan so far, and what else there is. start: instead of the layers' winners."""

    worker: Worker
    network: Network
    options: dict[str, list[Candidate]]
    start: _Plan | None = None

    def __post_init__(self) -> None:
        if self.start:
            self.now = self.start
            return
        # One operator of torch's, or plan of cuDNN's, keeps all kernels from being one graph of ours: no change of one
        # layer tells whether that is worth it. So we start without any, unless the layers' winners are faster together.
        options = {name: candidates for name, candidates in self.options.items() if candidates}
        ours = {
            name: Pick(name, next((c for c in candidates if c.native), candidates[0]))
            for name, candidates in options.items()
        }
        winners = {name: Pick(name, candidates[0]) for name, candidates in options.items()}
        self.now, fastest = _Plan(ours), _Plan(winners)
        if _layers(self.network, self.now) != _layers(self.network, fastest):
            self._take_faster([fastest])

    def descend(self) -> _Plan:
        """The plan that no change of one layer or alternative, or of two neighbours' order, makes faster."""
        for sweep in range(SWEEPS):
            changed = [self._settle_alternative(alternative) for alternative in self.network.alternatives]
            names = [pick.layer for pick in _layers(self.network, self.now)]
            groups = self._of_one_problem(names) if sweep == 0 and not self.start else [[name] for name in names]
            changed += [self._settle_layers(group) for group in groups]
            changed.append(self._settle_order())
            if len(groups) == len(names) and not any(changed):
                break
        return self.now

    def _of_one_problem(self, names: Sequence[str]) -> list[list[str]]:
        """Layers that have the same candidates."""
        problems = {layer.name: layer.problem for layer in self.network.all_layers}
        groups: dict[Problem, list[str]] = {}
        for name in names:
            groups.setdefault(problems[name], []).append(name)
        return list(groups.values())

    def _settle_alternative(self, alternative: Alternative) -> bool:
        """Take an alternative, or give it up, if that is faster; those that it excludes are given up with it."""
        picks, taken = self.now.picks, self.now.taken
        if any(layer.name not in picks for layer in alternative.layers):
            return False  # it has no candidates
        gone = set(alternative.replaces)
        others = [one for one in taken if one != alternative and gone.isdisjoint(one.replaces)]
        if alternative in taken:
            if any(name not in picks for name in alternative.replaces):
                return False
            tried = [one for one in taken if one != alternative]
        else:
            tried = [*others, alternative]
        own = [layer.name for layer in alternative.layers]
        overlapping = {name: replace(picks[name], overlap=picks[name].candidate.native) for name in own}
        return self._take_faster([replace(self.now, picks={**picks, **way}, taken=tried) for way in ({}, overlapping)])

    def _settle_layers(self, names: Sequence[str]) -> bool:
        """Take the candidate of some layers, which have the same, with which the network is fastest."""
        ways = [
            {name: Pick(name, candidate, overlap) for name in names}
            for candidate in self.options[names[0]]
            for overlap in (False, True)
            if candidate.native or not overlap
        ]
        now = {name: self.now.picks[name] for name in names}
        tried = [way for way in ways if way != now]
        if not tried:
            return False
        plans = [replace(self.now, picks={**self.now.picks, **way}) for way in tried]
        shares = self._shares(plans)
        ranked = sorted(range(len(tried)), key=shares.__getitem__)
        if gained := min(shares) < GAIN:
            self.now = plans[ranked[0]]
        for name in names:
            kept = [now[name].candidate]
            for other in (tried[i][name].candidate for i in ranked):
                if other not in kept and len(kept) < KEPT:
                    kept.append(other)
            self.options[name] = kept
        return gained

    def _settle_order(self) -> bool:
        """Exchange two neighbours, of which neither waits for the other, where that is faster."""
        layers = self.network.layers_with([one.name for one in self.now.taken], self.now.order)
        names = [layer.name for layer in layers]
        orders = [
            [*names[:i], names[i + 1], names[i], *names[i + 2 :]]
            for i in range(len(names) - 1)
            if set(layers[i].writes).isdisjoint(layers[i + 1].reads)
        ]
        return self._take_faster([replace(self.now, order=order) for order in orders])

    def _take_faster(self, plans: Sequence[_Plan]) -> bool:
        """Go on with the fastest of some plans, if it is faster than the plan so far."""
        shares = self._shares(plans) if plans else [math.inf]
        if gained := min(shares) < GAIN:
            self.now = plans[shares.index(min(shares))]
        return gained

    def _shares(self, plans: Sequence[_Plan]) -> list[float]:
        """Each plan's share of the time of the plan so far, in interleaved rounds; infinite for what does not run."""
        picks = [_layers(self.network, plan) for plan in (self.now, *plans)]
        now, *results = self.worker.plans(self.network, picks, ROUNDS)
        if now.median_us is not None:
            return [(result.median_us or math.inf) / now.median_us for result in results]
        if len(plans) == 1:
            return [math.inf]
        # A failure of one is a failure of all: which one?
        return [share for plan in plans for share in self._shares([plan])]
