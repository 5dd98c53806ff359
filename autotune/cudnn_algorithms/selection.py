"""Records of cuDNN's algorithms for the passes of a convolution, and the selection among them.

Nothing here uses a device: the records come from autotune/cudnn_algorithms/benchmark.py, or from a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.core import LibraryError, format_bytes, pareto_front
from autotune.libraries.cudnn.classic import BACKWARD_DATA, BACKWARD_FILTER, FORWARD

DIRECTIONS = (FORWARD, BACKWARD_DATA, BACKWARD_FILTER)
"""The passes of a convolution."""

ORDERS = {"time": "us", "workspace": "workspace_bytes", "energy": "energy_uj"}
"""Criteria of the selection -> the field of `Algorithm`; smaller is better."""


@dataclass(frozen=True)
class Algorithm:
    """An algorithm for one pass of a convolution of given sizes, and the result of its measurement.

    kind: "classic" (numbered by cuDNN's older API) or "engine" (an execution plan of its graph API).
    key: The name by which a user selects it: the classic number, or the name of the plan. The latter consists of engine
        and knobs and is valid for one version of cuDNN.
    math: The arithmetic, as cuDNN names it.
    deterministic: Whether the same input gives the same bits; None if unknown.
    status: "offered" (not run yet), "ok", "wrong", "failed" or "unsupported".
    reason: Why the algorithm cannot be used.
    us, spread_us: Median and interquartile range of the time of one call, in microseconds.
    energy_uj: Energy of the whole GPU for one call, in microjoules.
    relative_error: Norm of the difference from the reference over the norm of the reference.
    """

    direction: str
    kind: str
    key: str
    name: str
    workspace_bytes: int = 0
    deterministic: bool | None = None
    math: str = ""
    status: str = "offered"
    reason: str | None = None
    us: float | None = None
    spread_us: float | None = None
    energy_uj: float | None = None
    relative_error: float | None = None

    @property
    def usable(self) -> bool:
        """True if it may be selected."""
        return self.status in ("offered", "ok")

    def __str__(self) -> str:
        return f"{self.key} {self.name}" if self.kind == "classic" else self.key

    def as_json(self) -> dict[str, Any]:
        """Return its entry in a record."""
        return asdict(self)


def matches_key(algorithm: Algorithm, key: str) -> bool:
    """Return whether a user's key names it: a classic number, the name of a plan, or the engine of a plan ("eng57")."""
    if algorithm.kind == "classic":
        return key == algorithm.key
    return key == algorithm.key or algorithm.key.startswith(f"{key}_")


def ordered(algorithms: Iterable[Algorithm], by: str) -> list[Algorithm]:
    """Return the algorithms by a criterion of ORDERS, best first.

    Usable algorithms with an unknown value come behind the known ones, and unusable ones at the end.
    """
    name = ORDERS[by]

    def rank(algorithm: Algorithm) -> tuple[bool, float, float]:
        value = getattr(algorithm, name)
        time = math.inf if algorithm.us is None else algorithm.us
        return (not algorithm.usable, math.inf if value is None else value, time)

    return sorted(algorithms, key=rank)


def pareto(algorithms: Iterable[Algorithm], against: str) -> list[Algorithm]:
    """Return the usable algorithms on the Pareto front of time and `against` (of ORDERS), the fastest first."""
    field = ORDERS[against]
    known = [a for a in algorithms if a.usable and a.us is not None and getattr(a, field) is not None]
    points = [(algorithm.us or 0.0, float(getattr(algorithm, field))) for algorithm in known]
    return ordered((known[i] for i in pareto_front(points)), "time")


def select_algorithm(
    algorithms: Sequence[Algorithm],
    direction: str,
    key: str | None = None,
    workspace_limit: int | None = None,
    deterministic: bool = False,
    prefer: str = "time",
) -> Algorithm:
    """Return the best algorithm that meets the requirements.

    Args:
        algorithms: Candidates, possibly also of other passes.
        direction: The pass, of DIRECTIONS.
        key: A classic number, or the name or the engine of a plan; None for any algorithm.
        workspace_limit: Most bytes of workspace.
        deterministic: Whether the same input must give the same bits.
        prefer: Criterion of ORDERS among those that meet the requirements.

    Raises:
        LibraryError: If there is none; the message lists algorithms that could be selected.
    """
    mine = [algorithm for algorithm in algorithms if algorithm.direction == direction]
    usable = [algorithm for algorithm in mine if algorithm.usable]
    named = usable if key is None else [algorithm for algorithm in usable if matches_key(algorithm, key)]
    # One plan of an engine may have the name of the engine itself.
    named = [algorithm for algorithm in named if algorithm.key == key] or named
    if not named:
        refused = [a for a in mine if key is not None and matches_key(a, key)]
        why = f" ({refused[0].reason})" if refused and refused[0].reason else ""
        what = "has no algorithm" if key is None else f"does not support {direction} algorithm {key}"
        raise LibraryError(f"cuDNN {what} for this layer{why}: {_listed(usable)}")
    allowed = [a for a in named if _why_excluded(a, workspace_limit, deterministic) is None]
    if not allowed:
        reasons = "; ".join(dict.fromkeys(f"{_why_excluded(a, workspace_limit, deterministic)}" for a in named[:3]))
        fitting = [a for a in usable if _why_excluded(a, workspace_limit, deterministic) is None]
        raise LibraryError(f"{direction}: {reasons}: {_listed(fitting, 'fit') if fitting else _least(usable)}")
    return ordered(allowed, prefer)[0]


def _why_excluded(algorithm: Algorithm, workspace_limit: int | None, deterministic: bool) -> str | None:
    """Return why an algorithm does not meet the requirements; None if it does."""
    if workspace_limit is not None and algorithm.workspace_bytes > workspace_limit:
        needed, limit = format_bytes(algorithm.workspace_bytes), format_bytes(workspace_limit)
        return f"{algorithm} needs {needed} of workspace, more than {limit}"
    if deterministic and not algorithm.deterministic:
        return f"{algorithm} is not known to be deterministic"
    return None


def _listed(algorithms: Sequence[Algorithm], what: str = "are supported") -> str:
    if not algorithms:
        return "none are"
    classic = [str(algorithm) for algorithm in algorithms if algorithm.kind == "classic"]
    engines = [algorithm.key for algorithm in algorithms if algorithm.kind == "engine"]
    if engines:
        rest = f" and {len(engines) - 3} more engines" if len(engines) > 3 else ""
        classic.append(", ".join(engines[:3]) + rest)
    return f"{', '.join(classic)} {what}"


def _least(usable: Sequence[Algorithm]) -> str:
    least = min(usable, key=lambda algorithm: algorithm.workspace_bytes)
    return f"none fits; the least workspace is {format_bytes(least.workspace_bytes)}, of {least}"
