"""The plans of a database, with the layers of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.ir import NetworkKey
from autotune.measure import THROTTLED
from autotune.report.layers import runner
from autotune.report.records import Layer, NetworkLayer, NetworkTime
from autotune.runtime import ActivationPlace
from autotune.tuner import format_candidate
from tuning_db import Store, evidence
from tuning_db.schema import Device, KernelRow, PlanRow
from tuning_db.trust.digests import launch_text

Times = Mapping[tuple[int, str, float], str]
"""Id of a kernel, launch values and time -> text of the problem that was measured so."""


def networks(store: Store, device: Device, layers: Sequence[Layer]) -> tuple[NetworkTime, ...]:
    """Return the networks with a plan."""
    by_problem = {layer.problem: layer for layer in layers}
    kernels = {row.id: row for row in store.kernels(device.target)}
    newest = {row.network: row for row in store.plans() if row.device_id == device.id}
    newest = dict(sorted(newest.items(), key=lambda item: _place(item[0])))
    times = _measured_times(layers)
    return tuple(_planned(store, row, by_problem, kernels, times) for row in newest.values())


def _place(key: str) -> tuple[object, ...]:
    """Return a sort key: model, properties and batch size; plans for machines without a compiler come last."""
    known = NetworkKey.parse(key)
    return known.is_precompiled, known.model, known.properties, known.batch or 0, known.digest


def _verified(plan: PlanRow) -> str:
    """Return a sentence about the newest check of a plan on this machine, whatever the software; empty without one."""
    found = evidence.last(plan.digest or "")
    if found is None:
        return ""
    named = (("driver", found.driver), ("torch", found.torch), ("cuDNN", found.cudnn))
    software = ", ".join(f"{name} {version}" for name, version in named if version)
    return f"autotune verify found it {found.status} on {found.date[:10]} with {software}"


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
    by_problem: Mapping[str, Layer],
    kernels: Mapping[int, KernelRow],
    times: Times,
) -> NetworkTime:
    total = sum(choice["us"] or 0.0 for choice in plan.choices)

    def layer(choice: Mapping[str, Any]) -> NetworkLayer:
        us = float(choice["us"] or 0.0)
        kernel = kernels.get(choice["kernel"]) or store.kernel(choice["kernel"])
        place = kernel.id, launch_text(choice["launch"]), us
        problem = times.get(place, "")
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
        label=str(plan.details.get("label", "")),
        precompiled=NetworkKey.parse(plan.network).is_precompiled,
        us=plan.median_us,
        spread_us=plan.spread_us,
        winners_us=plan.details.get("alone_us") or None,
        torch_us=plan.details.get("torch_us", {}),
        is_throttled=bool(plan.details.get(THROTTLED)),
        verified=_verified(plan),
        taken=taken,
        memory=tuple(ActivationPlace(*values) for values in plan.details.get("memory", ())),
    )
