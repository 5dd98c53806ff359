"""The trials of all layers as compact JSON, from which the page's script makes the view of a layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.report.charts import describe
from autotune.report.layers import runner
from autotune.report.records import DeviceReport, Importances, Layer, Report, Trial
from autotune.tuner.optuna_export import Value


def layers_data(report: Report) -> dict[str, Any]:
    """Return layer id -> what the view of the layer shows, for all devices."""
    return {
        layer.id: _layer(layer, uses, device)
        for device in report.devices
        for uses in [_uses(device)]
        for layer in device.layers
    }


def _uses(device: DeviceReport) -> Mapping[str, Sequence[str]]:
    """Return layer id -> where the layer occurs in the networks."""
    found: dict[str, list[str]] = defaultdict(list)
    for network in device.networks:
        for one in network.layers:
            if one.layer:
                found[one.layer.id].append(f"{one.name} of {network.key}")
    return found


def _layer(layer: Layer, uses: Mapping[str, Sequence[str]], device: DeviceReport) -> dict[str, Any]:
    reasons = {one.family: one for one in layer.importances}
    families: dict[str, list[Trial]] = {}
    for trial in layer.trials:
        families.setdefault(trial.family, []).append(trial)
    return {
        "name": layer.name,
        "problem": layer.problem,
        "device": device.name,
        "about": describe(layer, device.unit).splitlines()[1:],
        "winner": layer.winner,
        "winnerFamily": layer.family,
        "uses": uses.get(layer.id, []),
        "families": [_family(name, trials, reasons[name]) for name, trials in families.items()],
        "failures": [
            [cause.count, cause.family, cause.status, cause.message, cause.example] for cause in layer.failures
        ],
    }


def _family(name: str, trials: Sequence[Trial], found: Importances) -> dict[str, Any]:
    """Return the trials of a family; parameters and errors are given by their index in the lists beside them."""
    values = _values(trials)
    errors = list(dict.fromkeys(trial.error for trial in trials))
    resources = [one and [one.registers, one.spill_bytes] for one in (trial.resources for trial in trials)]
    return {
        "name": name,
        "runner": runner(name),
        "parameters": [[parameter, list(known)] for parameter, known in values.items()],
        "importances": {parameter: round(value, 4) for parameter, value in found.values.items()},
        "reason": found.reason,
        "errors": errors,
        "resources": resources if any(resources) else [],
        "trials": [
            [
                _short(trial.us),
                _short(trial.spread_us),
                trial.status,
                errors.index(trial.error),
                int(trial.final),
                None if trial.recorded is None else round(trial.recorded),
                *(known.index(trial.params[name]) if name in trial.params else None for name, known in values.items()),
            ]
            for trial in trials
        ],
    }


def _values(trials: Iterable[Trial]) -> dict[str, list[Value]]:
    """Return parameter -> its values in the trials, in ascending order where they are numbers."""
    found: dict[str, dict[Value, None]] = defaultdict(dict)
    for trial in trials:
        for name, value in trial.params.items():
            found[name][value] = None
    return {name: sorted(values, key=_order) for name, values in found.items()}


def _order(value: Value) -> tuple[bool, float, str]:
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if isinstance(value, int | float) else 0.0, str(value)


def _short(us: float | None) -> float | None:
    """Return a time with five significant digits, which halves the size of the page."""
    return None if us is None else float(f"{us:.5g}")
