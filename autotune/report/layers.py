"""The problems of a database with their trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import groupby

from autotune.core import AutotuneError
from autotune.ir import Problem, limit_us, parse
from autotune.libraries import aten, inductor
from autotune.libraries.cudnn_names import FAMILY as CUDNN_FAMILY
from autotune.report.importances import importances
from autotune.report.records import CUDNN, OURS, TORCH, FailureCause, Layer, Trial
from autotune.report.stored_resources import StoredResources
from autotune.tuner import format_candidate, format_config
from autotune.tuner.optuna_export import RecordedStudy, studies
from tuning_db import Store
from tuning_db.ranking import ranked
from tuning_db.schema import Device, Measurement
from tuning_db.trust.digests import launch_text

_STATES = ("state", "before", "after")
"""Entries of a measurement's details that hold the state of the device."""

_RUNNERS = {CUDNN_FAMILY: CUDNN, aten.FAMILY: TORCH, inductor.FAMILY: TORCH}


def runner(family: str) -> str:
    """Return what runs the candidates of a family or library: OURS, CUDNN or TORCH."""
    return _RUNNERS.get(family, OURS)


def layers(store: Store, tell: Callable[[str], object] = lambda _: None) -> dict[int, list[Layer]]:
    """Return the problems with trials by the id of their device.

    Args:
        store: The database.
        tell: Called with the text of each problem that is begun.
    """
    texts = {row.text: row.id for row in store.problems()}
    found: dict[int, list[Layer]] = {device.id: [] for device in store.devices()}
    resources = StoredResources(store)
    for (device, text), group in groupby(studies(store), key=lambda study: (study.device, study.problem)):
        tell(text)
        found[device.id].append(_layer(f"{device.id}.{texts[text]}", device, text, list(group), resources))
    return found


def parsed(text: str) -> Problem | None:
    """Return a problem; None if its operator or a step of its epilogue is not defined here."""
    try:
        return parse(text)
    except AutotuneError:
        return None


def _layer(
    identity: str, device: Device, text: str, recorded: Sequence[RecordedStudy], resources: StoredResources
) -> Layer:
    problem = parsed(text)
    measured = [row for study in recorded for row in study.measured]
    best = next(iter(ranked(row for row in measured if row.status == "ok")), None)
    limit = limit_us(problem, device.flops_per_us, device.bytes_per_us) if problem else None
    by_arithmetic = problem is not None and limit is not None and limit > problem.bytes / device.bytes_per_us
    return Layer(
        id=identity,
        problem=text,
        name=problem.short_name if problem else text.split(maxsplit=1)[0],
        batch=problem.batch if problem else None,
        flops=problem.flops if problem else None,
        bytes=problem.bytes if problem else None,
        limit_us=limit,
        limiter=("arithmetic" if by_arithmetic else "memory") if problem else "",
        trials=tuple(_trial(study, row, resources) for study in recorded for row in study.measured),
        importances=tuple(map(importances, recorded)),
        failures=_failures(recorded),
        winner=format_config(best) if best else "",
        family=best.kernel.family if best else "",
        runner=runner(best.kernel.family) if best else "",
        us=best.median_us if best else None,
        library_us=_fastest(measured),
    )


def _trial(study: RecordedStudy, row: Measurement, resources: StoredResources) -> Trial:
    return Trial(
        kernel=row.kernel_id,
        launch=launch_text(row.launch),
        family=study.family,
        params=study.params(row.kernel, row.launch),
        status=row.status,
        error=row.error or "",
        us=row.median_us if row.status == "ok" else None,
        spread_us=row.spread_us,
        final=row.final,
        recorded=datetime.fromisoformat(row.recorded).timestamp() if row.recorded else None,
        seconds=row.details.get("seconds", {}),
        states=tuple(state for name in _STATES if (state := row.details.get(name))),
        resources=resources.of(row.kernel),
    )


def _fastest(measured: Iterable[Measurement]) -> dict[str, float]:
    """Return the shortest time of each kind of candidate, by finals where there are some."""
    fastest: dict[str, float] = {}
    for row in ranked(row for row in measured if row.status == "ok"):
        fastest.setdefault(runner(row.kernel.family), row.median_us or 0.0)
    return fastest


def _failures(recorded: Iterable[RecordedStudy]) -> tuple[FailureCause, ...]:
    counts: Counter[tuple[str, str, str]] = Counter()
    examples: dict[tuple[str, str, str], str] = {}
    for study in recorded:
        failed = [(row.status, row.error or "", format_config(row)) for row in study.measured if row.status != "ok"] + [
            ("does not compile", kernel.error or "", format_candidate(kernel, {})) for kernel in study.failed
        ]
        for status, message, example in failed:
            counts[study.family, status, message] += 1
            examples.setdefault((study.family, status, message), example)
    return tuple(FailureCause(*cause, count=count, example=examples[cause]) for cause, count in counts.most_common())
