"""Settles a network's candidates inside its CUDA graph: coordinate descent from each layer's winner.

First the network's alternatives: each is taken or given up as the whole network's time says. Then for one layer at a
time its finalists, and the choice to let it overlap with the kernel before it, are timed in the whole network against
the plan so far, in interleaved rounds; what is faster by more than the noise is kept. In the first sweep all
layers with the same problem change together: that takes fewer rounds, and what is gained stands out of the noise. It
ends when a sweep over alternatives and layers changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.network import Pick
from autotune.problem import Problem
from autotune.worker import Worker
from fused_resnet.binding import Candidate
from fused_resnet.candidates import candidate
from fused_resnet.graph import Alternative, Network
from fused_resnet.selection import shortlist
from tuning_db import Store
from tuning_db.schema import Device, Measurement, PlanRow

CANDIDATES, KEPT = 12, 4
"""Candidates of a layer that are tried, and how many of them again once all layers were settled."""
PLANS = 2
"""Plans of cuDNN that are tried beside them."""
SWEEPS = 3
ROUNDS = 7
GAIN = 0.998
"""A plan must take at most this share of the time of the one that it replaces."""


def settle_network(store: Store, device: Device, worker: Worker, network: Network) -> PlanRow | None:
    """Find and record the network's fastest plan; None where it cannot be timed.

    details["alone_us"] of the result is the time of the plainest layers with the winner of each, in the same rounds;
    details["alternatives"] names those that were taken.
    """
    ranked = {
        layer.name: shortlist(store.ranking(device, str(layer.problem)), CANDIDATES, PLANS)
        for layer in network.all_layers
    }
    if not all(ranked[layer.name] for layer in network.layers):
        return None
    options = {name: [candidate(store, row.kernel, row.launch) for row in rows] for name, rows in ranked.items()}
    settling = _Settling(worker, network, dict(options))
    picks = settling.descend()
    if picks is None:
        return None
    alone = [Pick(layer.name, options[layer.name][0]) for layer in network.layers]
    before, end = worker.plans(network, [alone, settling.plan()], 3 * ROUNDS)
    if before.median_us is None or end.median_us is None or end.spread_us is None:
        return None
    return store.put_plan(
        device_id=device.id,
        network=network.key,
        median_us=end.median_us,
        spread_us=end.spread_us,
        choices=[_choice(pick, ranked[pick.layer][options[pick.layer].index(pick.candidate)]) for pick in picks],
        details={
            "alone_us": before.median_us,
            "samples_us": end.samples_us,
            "alternatives": [alternative.name for alternative in settling.taken],
        },
    )


def _choice(pick: Pick, row: Measurement) -> dict[str, object]:
    return {
        "layer": pick.layer,
        "kernel": row.kernel_id,
        "launch": dict(row.launch),
        "us": row.median_us,
        "overlap": pick.overlap,
    }


@dataclass
class _Settling:
    """The plan so far: a pick for every layer, taken or not, and the alternatives taken."""

    worker: Worker
    network: Network
    options: dict[str, list[Candidate]]

    def __post_init__(self) -> None:
        # One operator of torch's, or plan of cuDNN's, keeps all kernels from being one graph of ours: no change of one
        # layer tells whether that is worth it. So we start without any, unless the layers' winners are faster together.
        options = {name: candidates for name, candidates in self.options.items() if candidates}
        self.picks = {
            name: Pick(name, next((c for c in candidates if c.native), candidates[0]))
            for name, candidates in options.items()
        }
        self._winners = {name: Pick(name, candidates[0]) for name, candidates in options.items()}
        self.taken: list[Alternative] = []

    def plan(self) -> list[Pick]:
        """The picks of the layers that run, in order."""
        return self._with(self.taken, self.picks)

    def descend(self) -> list[Pick] | None:
        """The plan that no change of one layer or alternative makes faster; None if plans cannot be timed here."""
        if self.worker.plans(self.network, [self.plan()], 1)[0].median_us is None:
            return None
        starts = [self.plan(), self._with([], self._winners)]
        if starts[0] != starts[1]:
            ours, winners = self.worker.plans(self.network, starts, ROUNDS)
            if ours.median_us and winners.median_us and winners.median_us < GAIN * ours.median_us:
                self.picks = self._winners
        for sweep in range(SWEEPS):
            changed = [self._settle_alternative(alternative) for alternative in self.network.alternatives]
            names = [pick.layer for pick in self.plan()]
            groups = self._of_one_problem(names) if sweep == 0 else [[name] for name in names]
            changed += [self._settle_layers(group) for group in groups]
            if len(groups) == len(names) and not any(changed):
                break
        return self.plan()

    def _of_one_problem(self, names: Sequence[str]) -> list[list[str]]:
        """Layers that have the same candidates."""
        problems = {layer.name: layer.problem for layer in self.network.all_layers}
        groups: dict[Problem, list[str]] = {}
        for name in names:
            groups.setdefault(problems[name], []).append(name)
        return list(groups.values())

    def _with(self, taken: Sequence[Alternative], picks: dict[str, Pick]) -> list[Pick]:
        return [picks[layer.name] for layer in self.network.layers_with([one.name for one in taken])]

    def _settle_alternative(self, alternative: Alternative) -> bool:
        """Take an alternative, or give it up, if that is faster; those that it excludes are given up with it."""
        if any(layer.name not in self.picks for layer in alternative.layers):
            return False  # it has no candidates
        gone = set(alternative.replaces)
        others = [one for one in self.taken if one != alternative and gone.isdisjoint(one.replaces)]
        if alternative in self.taken:
            if any(name not in self.picks for name in alternative.replaces):
                return False
            tried = [one for one in self.taken if one != alternative]
        else:
            tried = [*others, alternative]
        own = [layer.name for layer in alternative.layers]
        overlapping = {name: replace(self.picks[name], overlap=self.picks[name].candidate.native) for name in own}
        ways = [self.picks, {**self.picks, **overlapping}]
        shares = self._shares([self._with(tried, picks) for picks in ways])
        best = shares.index(min(shares))
        if shares[best] < GAIN:
            self.taken, self.picks = tried, ways[best]
        return shares[best] < GAIN

    def _settle_layers(self, names: Sequence[str]) -> bool:
        """Take the candidate of some layers, which have the same, with which the network is fastest."""
        ways = [
            {name: Pick(name, candidate, overlap) for name in names}
            for candidate in self.options[names[0]]
            for overlap in (False, True)
            if candidate.native or not overlap
        ]
        now = {name: self.picks[name] for name in names}
        tried = [way for way in ways if way != now]
        if not tried:
            return False
        shares = self._shares([self._with(self.taken, {**self.picks, **way}) for way in tried])
        ranked = [way for _, way in sorted(zip(shares, tried, strict=True), key=lambda pair: pair[0])]
        if gained := min(shares) < GAIN:
            self.picks.update(ranked[0])
        for name in names:
            kept = [now[name].candidate]
            for other in (way[name].candidate for way in ranked):
                if other not in kept and len(kept) < KEPT:
                    kept.append(other)
            self.options[name] = kept
        return gained

    def _shares(self, plans: Sequence[Sequence[Pick]]) -> list[float]:
        """Each plan's share of the time of the plan so far, in interleaved rounds; infinite for what does not run."""
        now, *results = self.worker.plans(self.network, [self.plan(), *plans], ROUNDS)
        if now.median_us is not None:
            return [(result.median_us or float("inf")) / now.median_us for result in results]
        if len(plans) == 1:
            return [float("inf")]
        # A failure of one is a failure of all: which one?
        return [share for plan in plans for share in self._shares([plan])]
