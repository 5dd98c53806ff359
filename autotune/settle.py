"""Settles a network's candidates inside its CUDA graph: coordinate descent from each layer's winner.

For one layer at a time its finalists, and the choice to let it overlap with the kernel before it, are timed in the
whole network against the plan so far, in interleaved rounds; what is faster by more than the noise is kept. It ends
when a sweep over all layers changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.network import Pick
from autotune.worker import Worker
from fused_resnet.binding import Candidate
from fused_resnet.candidates import candidate
from fused_resnet.graph import Network
from tuning_db import Store
from tuning_db.schema import Device, PlanRow

ALTERNATIVES = 6
SWEEPS = 3
ROUNDS = 9
GAIN = 0.998
"""A plan must take at most this share of the time of the one that it replaces."""


def settle_network(store: Store, device: Device, worker: Worker, network: Network) -> PlanRow | None:
    """Find and record the network's fastest plan; None where it cannot be timed.

    details["alone_us"] of the result is the time with each layer's winner, in the same rounds.
    """
    ranked = [store.ranking(device, str(layer.problem))[:ALTERNATIVES] for layer in network.layers]
    if not all(ranked):
        return None
    options = [[candidate(store, row.kernel, row.launch) for row in rows] for rows in ranked]
    alone = [Pick(candidates[0]) for candidates in options]
    # One torch operator keeps all kernels from being one graph of ours, so we start without any, where that can be.
    start = [Pick(next((c for c in candidates if c.kind), candidates[0])) for candidates in options]
    picks = _descend(worker, network, start, options)
    if picks is None:
        return None
    before, end = worker.plans(network, [alone, picks], 3 * ROUNDS)
    if before.median_us is None or end.median_us is None or end.spread_us is None:
        return None
    chosen = []
    for layer, pick, candidates, rows in zip(network.layers, picks, options, ranked, strict=True):
        row = rows[candidates.index(pick.candidate)]
        chosen.append(
            {
                "layer": layer.name,
                "kernel": row.kernel_id,
                "launch": dict(row.launch),
                "us": row.median_us,
                "overlap": pick.overlap,
            }
        )
    return store.put_plan(
        device_id=device.id,
        network=network.key,
        median_us=end.median_us,
        spread_us=end.spread_us,
        choices=chosen,
        details={"alone_us": before.median_us, "samples_us": end.samples_us},
    )


def _descend(
    worker: Worker, network: Network, start: Sequence[Pick], options: Sequence[Sequence[Candidate]]
) -> list[Pick] | None:
    """The plan that no change of one layer makes faster; None if plans cannot be timed here."""
    picks = list(start)
    if worker.plans(network, [picks], 1)[0].median_us is None:
        return None
    for _ in range(SWEEPS):
        changed = False
        for i, candidates in enumerate(options):
            tried = [
                Pick(other, overlap) for other in candidates for overlap in (False, True) if other.kind or not overlap
            ]
            tried.remove(picks[i])
            if not tried:
                continue
            shares = _shares(worker, network, picks, [[*picks[:i], pick, *picks[i + 1 :]] for pick in tried])
            best = min(range(len(shares)), key=shares.__getitem__)
            if shares[best] < GAIN:
                picks[i] = tried[best]
                changed = True
        if not changed:
            break
    return picks


def _shares(worker: Worker, network: Network, picks: Sequence[Pick], plans: Sequence[Sequence[Pick]]) -> list[float]:
    """Each plan's share of the time that `picks` takes, from one interleaved run; infinite for what does not run."""
    now, *results = worker.plans(network, [picks, *plans], ROUNDS)
    if now.median_us is not None:
        return [(result.median_us or float("inf")) / now.median_us for result in results]
    if len(plans) == 1:
        return [float("inf")]
    # A failure of one is a failure of all: which one?
    return [share for plan in plans for share in _shares(worker, network, picks, [plan])]
