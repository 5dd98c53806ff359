"""A database's trials as studies of Optuna, for Optuna's own tools, such as optuna-dashboard.

A study is the search of one family, or of a library's implementations, on one problem and device. Its trials are the
measurements, in the order in which they were made, and the kernels that did not compile.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from autotune.core import AutotuneError, first_line
from autotune.families import families
from autotune.ir import Problem, parse
from autotune.measure import TRIAL_STEPS, is_pruned
from autotune.search import ended_trial
from autotune.tuner.request import DEFAULT_OBJECTIVES, OBJECTIVES, objective_values
from tuning_db import DatabaseError, Store
from tuning_db.schema import Device, KernelRow, Measurement

_LIBRARY_PARAMETERS = ("plan", "bias", "memory_format", "mode")
"""Of the config of a library's implementation: what tells it from the others of its problem."""

Value = str | int | float | bool | None
"""A value of a parameter."""


@dataclass(frozen=True)
class RecordedStudy:
    """The search of one family, or of a library's implementations, on one problem and device.

    Attributes:
        device: The device.
        problem: Text of the problem.
        family: Name of the family or of the library.
        measured: Its measurements, in the order in which they were made.
        failed: Kernels of the family for this dtype and epilogue that did not compile.
    """

    device: Device
    problem: str
    family: str
    measured: Sequence[Measurement]
    failed: Sequence[KernelRow]

    def params(self, kernel: KernelRow, launch: Mapping[str, int]) -> dict[str, Value]:
        """Return the values of the parameters of a kernel and of its launch."""
        config = json.loads(kernel.config)
        if self.family not in families():
            config = {name: config[name] for name in _LIBRARY_PARAMETERS if name in config} or config
        return {**config, **launch}

    def trials(self, objectives: Sequence[str] = DEFAULT_OBJECTIVES) -> list[FrozenTrial]:
        """Return the trials. A parameter has the same choices in all of them, as Optuna wants.

        Args:
            objectives: Names of tuner.OBJECTIVES, which are the values of a trial.
        """
        found = [(self.params(row.kernel, row.launch), row) for row in self.measured]
        broken = [(self.params(kernel, {}), kernel) for kernel in self.failed]
        seen: dict[str, dict[Value, None]] = defaultdict(dict)
        for parameter in _parameters(self.family):
            seen[parameter.name] = dict.fromkeys(parameter.values)
        for params in [params for params, _ in found] + [params for params, _ in broken]:
            for name, value in params.items():
                seen[name][value] = None
        choices = {name: CategoricalDistribution(tuple(values)) for name, values in seen.items()}
        trials = [_measured_trial(params, choices, row, self._values(row, objectives)) for params, row in found]
        for params, kernel in broken:
            trials.append(_trial(params, choices, None, {"status": "does not compile", "error": kernel.error}))
        return trials

    def _values(self, row: Measurement, objectives: Sequence[str]) -> Sequence[float] | None:
        """Return the objectives of a measurement; None if it failed or one of them is not known."""
        if row.status != "ok" or row.median_us is None:
            return None
        if tuple(objectives) == DEFAULT_OBJECTIVES:
            return [row.median_us]  # also for operators that are not defined here
        if self._problem is None:
            return None
        return objective_values(objectives, self._problem, row.median_us, row.details)

    @cached_property
    def _problem(self) -> Problem | None:
        """The problem; None if its operator is not defined here."""
        try:
            return parse(self.problem)
        except AutotuneError:
            return None


def export(
    store: Store,
    path: Path,
    tell: Callable[[int, int], object] = lambda *_: None,
    objectives: Sequence[str] = DEFAULT_OBJECTIVES,
) -> int:
    """Write a new storage of Optuna, an SQLite file.

    Args:
        store: The database.
        path: The file.
        tell: Called with the number of studies that are written, and of all studies.
        objectives: Names of tuner.OBJECTIVES.

    Returns:
        The number of studies.

    Raises:
        DatabaseError: The file exists, or cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        if path.exists():
            raise DatabaseError(f"{path} exists: remove it or name another file")
        part.unlink(missing_ok=True)
        storage = optuna.storages.RDBStorage(f"sqlite:///{part}")
        count = _write(store, storage, tell, objectives)
        os.replace(part, path)
    except (OSError, SQLAlchemyError) as error:
        raise DatabaseError(f"cannot write {path}: {first_line(error)}") from error
    return count


def _write(
    store: Store,
    storage: optuna.storages.RDBStorage,
    tell: Callable[[int, int], object],
    objectives: Sequence[str],
) -> int:
    """Write all studies; returns their number."""
    event.listen(storage.engine, "connect", _write_without_waiting)
    storage.engine.dispose()  # the connections so far wait for the disk
    found = list(studies(store))
    for number, one in enumerate(found, 1):
        study = optuna.create_study(
            storage=storage,
            study_name=f"{one.family} | {one.problem} | {one.device.name}",
            directions=["minimize"] * len(objectives),
        )
        with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
            study.set_metric_names(list(objectives))
        notes = {
            "device": one.device.name,
            "target": one.device.target,
            "problem": one.problem,
            "family": one.family,
            "unit": ", ".join(OBJECTIVES[name].unit for name in objectives),
        }
        for key, value in notes.items():
            study.set_user_attr(key, value)
        study.add_trials(one.trials(objectives))
        tell(number, len(found))
    storage.engine.dispose()
    return len(found)


def _write_without_waiting(connection: Any, _: object) -> None:
    """Leave it to the operating system when an SQLite file reaches the disk: a broken export is made again."""
    connection.execute("PRAGMA synchronous = OFF")


def studies(store: Store) -> Iterator[RecordedStudy]:
    """Yield the studies of a database, by device, problem and family."""
    failed = _failed(store)
    for device in store.devices():
        for problem in store.problems():
            by_family: defaultdict[str, list[Measurement]] = defaultdict(list)
            for row in sorted(store.measurements(device, problem.text), key=lambda row: row.id):
                by_family[row.kernel.family].append(row)
            for family, rows in by_family.items():
                kinds = dict.fromkeys(_kind(row.kernel) for row in rows)
                yield RecordedStudy(device, problem.text, family, rows, [one for kind in kinds for one in failed[kind]])


def _failed(store: Store) -> defaultdict[tuple[str, ...], list[KernelRow]]:
    """Return the kernels that did not compile, by their kind."""
    found: defaultdict[tuple[str, ...], list[KernelRow]] = defaultdict(list)
    for target in sorted({device.target for device in store.devices()}):
        for row in store.kernels(target):
            if row.error:
                found[_kind(row)].append(row)
    return found


def _kind(kernel: KernelRow) -> tuple[str, ...]:
    """Return what the kernels of one study have in common."""
    return kernel.family, kernel.dtype, kernel.epilogue, kernel.target


def _parameters(family: str) -> Sequence[Any]:
    """Return the parameters of a family of kernels and of their launches; none for a library or an unknown family."""
    known = families().get(family)
    return (*known.parameters, *known.launch_parameters) if known else ()


def _measured_trial(
    params: Mapping[str, Value],
    choices: Mapping[str, CategoricalDistribution],
    row: Measurement,
    values: Sequence[float] | None,
) -> FrozenTrial:
    notes = {
        "status": row.status,
        "error": "an objective was not measured" if row.status == "ok" and values is None else row.error,
        "final": row.final,
        "relative_error": row.relative_error,
        "spread_us": row.spread_us,
        "kernel": row.kernel_id,
    }
    pruned = not row.final and is_pruned(row.samples_us)
    trial = _trial(params, choices, values, notes, pruned=pruned and values is not None and len(values) == 1)
    if row.recorded:
        trial.datetime_complete = datetime.fromisoformat(row.recorded).replace(tzinfo=None)
        known = row.details.get("seconds", {})
        spent = sum(known.get(step, 0) for step in TRIAL_STEPS)  # compilers work on many trials at a time
        trial.datetime_start = trial.datetime_complete - timedelta(seconds=spent)
    return trial


def _trial(
    params: Mapping[str, Value],
    choices: Mapping[str, CategoricalDistribution],
    values: Sequence[float] | None,
    notes: Mapping[str, object],
    *,
    pruned: bool = False,
) -> FrozenTrial:
    """Return a trial; one without values has failed."""
    attributes = {name: value for name, value in notes.items() if value is not None}
    return ended_trial(params, {name: choices[name] for name in params}, values, attributes, is_pruned=pruned)
