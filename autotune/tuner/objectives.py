"""The objectives of a search: time, time and memory, or energy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.ir import Problem

Details = Mapping[str, Any]
"""The `details` of a measurement in the database."""


@dataclass(frozen=True)
class Objective:
    """A quantity to minimize.

    Attributes:
        unit: Its unit.
        value: Maps (problem, microseconds, details) to the quantity, or to None if it was not measured.
    """

    unit: str
    value: Callable[[Problem, float, Details], float | None]


def _time_workspace(problem: Problem, us: float, details: Details) -> float | None:
    workspace = details.get("workspace_bytes")
    operands = sum(operand.bytes for operand in problem.operands())
    return None if workspace is None else us * (operands + workspace) / 2**20


OBJECTIVES = {
    "time": Objective("us", lambda problem, us, details: us),
    "time-workspace": Objective("us MiB", _time_workspace),
    "energy": Objective("uJ", lambda problem, us, details: details.get("energy_uj")),
}
DEFAULT_OBJECTIVES = ("time",)


def objective_values(
    names: Sequence[str], problem: Problem, us: float | None, details: Details
) -> tuple[float, ...] | None:
    """Return the values of some objectives.

    Args:
        names: Names of OBJECTIVES.
        problem: The problem.
        us: Time in microseconds, or None if the trial failed.
        details: The details of the measurement.

    Returns:
        The values to minimize, or None if the trial failed or one of the quantities was not measured.
    """
    if us is None:
        return None
    values = [OBJECTIVES[name].value(problem, us, details) for name in names]
    return tuple(v for v in values if v is not None) if None not in values else None
