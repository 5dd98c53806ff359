"""What a trial is judged by: time, time and memory, or energy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.ir import Problem

Details = Mapping[str, Any]


@dataclass(frozen=True)
class Objective:
    """value: (problem, microseconds, a measurement's details) -> lower is better, or None where it was not measured."""

    unit: str
    meaning: str
    value: Callable[[Problem, float, Details], float | None]


def _time_workspace(problem: Problem, us: float, details: Details) -> float | None:
    workspace = details.get("workspace_bytes")
    operands = sum(operand.bytes for operand in problem.operands())
    return None if workspace is None else us * (operands + workspace) / 2**20


OBJECTIVES = {
    "time": Objective("us", "microseconds of a call", lambda problem, us, details: us),
    "time-workspace": Objective("us MiB", "time multiplied by the memory of operands and workspace", _time_workspace),
    "energy": Objective("uJ", "energy of a call, on a GPU", lambda problem, us, details: details.get("energy_uj")),
}
DEFAULT = ("time",)


def value(names: Sequence[str], problem: Problem, us: float | None, details: Details) -> float | None:
    """What the search makes smaller: of several objectives the product, so that no unit counts more than another."""
    if us is None:
        return None
    values = [OBJECTIVES[name].value(problem, us, details) for name in names]
    return math.prod(v for v in values if v is not None) if None not in values else None
