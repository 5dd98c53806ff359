"""The networks of a database: their layers, and the alternatives that were not taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from autotune.core import ProblemError
from autotune.ir import Network, NetworkKey
from autotune.ir.operators import SpaceToDepth
from autotune.measure import THROTTLED
from autotune.report.layers import parsed, runner
from autotune.report.records import AlternativeTime, Layer, NetworkLayer, NetworkTime
from autotune.runtime import ActivationPlace
from autotune.tuner import format_candidate
from tuning_db import Store
from tuning_db.schema import Device, KernelRow, PlanRow
from tuning_db.trust.digests import launch_text

NamedNetworks = Mapping[str, Callable[[int, int, str], Network]]
"""Model -> what returns its network for a batch size, a number of input channels, and a dtype."""

Times = Mapping[tuple[int, str, float], str]
"""Id of a kernel, launch values and time -> text of the problem that was measured so."""


def networks(store: Store, device: Device, layers: Sequence[Layer], named: NamedNetworks) -> tuple[NetworkTime, ...]:
    """Return the networks with a plan, then those of `named` without one whose layers were all timed."""
    by_problem = {layer.problem: layer for layer in layers}
    kernels = {row.id: row for row in store.kernels(device.target)}
    newest = {row.network: row for row in store.plans() if row.device_id == device.id}
    newest = dict(sorted(newest.items(), key=lambda item: _place(item[0])))
    times = _measured_times(layers)
    found = [
        _planned(store, row, _named_network(row.network, named), by_problem, kernels, times) for row in newest.values()
    ]
    timed = _timed_networks(by_problem, named)
    return (*found, *(_unplanned(one, by_problem) for one in timed if one.key not in newest))


def _place(key: str) -> tuple[object, ...]:
    """Return a sort key: model, properties and batch size; plans for machines without a compiler come last."""
    known = NetworkKey.parse(key)
    return _is_precompiled(key), known.model, known.properties, known.batch or 0, known.digest


def _is_precompiled(key: str) -> bool:
    """Return whether a key is that of a plan for machines without a compiler."""
    return " compiler=none" in key


def _measured_times(layers: Iterable[Layer]) -> Times:
    """Return which problem each time was measured on.

    A plan names layers, kernels and times, but no problems. The time is that of one measurement, to the last bit. Times
    that belong to several problems are left out.
    """
    found: dict[tuple[int, str, float], str] = {}
    unclear = set()
    for layer in layers:
        for trial in layer.trials:
            if trial.us is None:
                continue
            key = trial.kernel, trial.launch, trial.us
            if found.setdefault(key, layer.problem) != layer.problem:
                unclear.add(key)
    return {key: problem for key, problem in found.items() if key not in unclear}


def _planned(
    store: Store,
    plan: PlanRow,
    own: Network | None,
    by_problem: Mapping[str, Layer],
    kernels: Mapping[int, KernelRow],
    times: Times,
) -> NetworkTime:
    problems = {layer.name: str(layer.problem) for layer in own.all_layers} if own else {}
    total = sum(choice["us"] or 0.0 for choice in plan.choices)

    def layer(choice: Mapping[str, Any]) -> NetworkLayer:
        us = float(choice["us"] or 0.0)
        kernel = kernels.get(choice["kernel"]) or store.kernel(choice["kernel"])
        place = kernel.id, launch_text(choice["launch"]), us
        problem = problems.get(choice["layer"]) or times.get(place, "")
        name = choice["layer"]
        if of_step := by_problem.get(name):  # the plan of a training step names problems
            problem, name = name, of_step.name
        text = format_candidate(kernel, choice["launch"])
        share = us / total if total else 0.0
        return NetworkLayer(name, text, runner(kernel.family), us, share, by_problem.get(problem))

    taken = tuple(plan.details.get("alternatives", ()))
    return NetworkTime(
        key=plan.network,
        layers=tuple(map(layer, plan.choices)),
        planned=True,
        precompiled=_is_precompiled(plan.network),
        us=plan.median_us,
        spread_us=plan.spread_us,
        winners_us=plan.details.get("alone_us") or None,
        torch_us=plan.details.get("torch_us", {}),
        is_throttled=bool(plan.details.get(THROTTLED)),
        taken=taken,
        alternatives=tuple(_alternatives(own, by_problem, taken)) if own else (),
        memory=tuple(ActivationPlace(*values) for values in plan.details.get("memory", ())),
    )


def _unplanned(own: Network, by_problem: Mapping[str, Layer]) -> NetworkTime:
    found = [(layer.name, by_problem[str(layer.problem)]) for layer in own.layers]
    total = sum(layer.us or 0.0 for _, layer in found)
    rows = tuple(
        NetworkLayer(name, layer.winner, layer.runner, layer.us or 0.0, (layer.us or 0.0) / total, layer)
        for name, layer in found
    )
    return NetworkTime(own.key, rows, False, alternatives=tuple(_alternatives(own, by_problem, None)))


def _alternatives(
    own: Network, by_problem: Mapping[str, Layer], taken: Sequence[str] | None
) -> Iterator[AlternativeTime]:
    """Yield the alternatives of which all layers, and all that they replace, were timed."""
    plain = {layer.name: _us(by_problem, str(layer.problem)) for layer in own.layers}
    for one in own.without_whole.alternatives:
        mine = [_us(by_problem, str(layer.problem)) for layer in one.layers]
        replaced = [plain[name] for name in one.replaces]
        if None not in mine and None not in replaced:
            us, replaced_us = (sum(time or 0.0 for time in times) for times in (mine, replaced))
            is_taken = None if taken is None else one.name in taken
            yield AlternativeTime(one.name, one.replaces, us, replaced_us, is_taken)


def _us(by_problem: Mapping[str, Layer], problem: str) -> float | None:
    return by_problem[problem].us if problem in by_problem else None


def _timed_networks(by_problem: Mapping[str, Layer], named: NamedNetworks) -> Iterator[Network]:
    """Yield the networks whose layers follow from their names, if all of them were timed.

    They begin with `space_to_depth`, which tells the batch size, the channels and the dtype.
    """
    for problem in map(parsed, by_problem):
        if isinstance(problem, SpaceToDepth):
            for make in named.values():
                own = make(problem.n, problem.c, problem.dtype)
                if all(_us(by_problem, str(layer.problem)) for layer in own.layers):
                    yield own


def _named_network(key: str, named: NamedNetworks) -> Network | None:
    """Return one of `named` by its key; None for a captured network, whose key does not tell its layers."""
    try:
        identity = NetworkKey.parse(key)
        properties = dict(identity.properties)
        if identity.model not in named or identity.batch is None:
            return None
        return named[identity.model](identity.batch, int(properties["in_channels"]), properties["dtype"])
    except (ProblemError, KeyError, ValueError):
        return None
