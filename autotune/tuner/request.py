"""The request of a tuning run: problems, objectives, limits and options, and the problems that a database lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.core import Architecture
from autotune.families import serving
from autotune.ir import Layer, Network, Problem
from autotune.ir.operators import Conv2dGradientSums, Conv2dStatistics, TorchCall
from autotune.libraries import cudnn, inductor
from autotune.measure import BUFFERS, THROTTLED, TIMERS, Timing
from autotune.search import DEFAULT_SAMPLER
from autotune.tuner.machines import TuningTarget
from tuning_db import DatabaseError, Store
from tuning_db.schema import Device

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


ONLY, TRIALS = "only", "trials"
"""Details of a final measurement, of a search that the user has limited: the families and the number of configs."""
RUN_SECONDS = "run_seconds"
"""Detail of a measurement: the budget of the run within which the trial did not end; absent if the run had none."""


@dataclass(frozen=True)
class TunerOptions:
    """The limits and choices of a tuning run.

    Attributes:
        arch: The architecture to tune for.
        target: The compilation target, such as "sm_90".
        trials: Number of configs that may be tried for a problem.
        jobs: Number of compilers that run at the same time.
        seed: Seed of the search.
        allow: Names of families.base.PERMISSIONS.
        only: Names of the families to try; if empty, all apart from those that must be named.
        sampler: A name of search.SAMPLERS, or "module:Class" for another sampler of Optuna.
        limit: Largest number of configs in the space of a family and a problem; 0 for no limit.
        gain: A study rests while it expects no config to improve the best time by this share of it.
        objectives: Names of tuner.OBJECTIVES; several are minimized together, which finds their Pareto front.
        vendor: The library whose plans are candidates on a GPU: "cudnn" or "none".
        inductor: The modes in which Inductor compiles calls of torch's operators; none if it does not.
        baseline_first: Time torch's operators of all problems before the search, for a training step: that runs a
            kernel only where it is known to be faster than torch's operator.
        is_limited: Whether the user has given `trials`.
    """

    arch: Architecture
    target: str
    trials: int
    jobs: int
    seed: int = 0
    allow: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    sampler: str = DEFAULT_SAMPLER
    limit: int = 0
    gain: float = 0.01
    objectives: tuple[str, ...] = DEFAULT_OBJECTIVES
    vendor: str = cudnn.FAMILY
    inductor: tuple[str, ...] = ()
    baseline_first: bool = False
    is_limited: bool = False

    @property
    def limits(self) -> dict[str, Any]:
        """Return what the user has limited the search to, as final measurements record it."""
        only = {ONLY: list(self.only)} if self.only else {}
        return only | ({TRIALS: self.trials} if self.is_limited else {})


CLOSE = 1.1
"""A budget that is no more than this many times longer is no reason to compile a network by Inductor once more."""


@dataclass(frozen=True)
class TuneRequest:
    """Problems to tune together.

    Attributes:
        name: Of the model, or "problems"; for the default file name of the database.
        title: For tables.
        named: The problems with the names of their layers, or with numbers.
        network: The network that the layers belong to; None for single problems and for a training step.
        is_step: Whether the problems are those of a training step.
    """

    name: str
    title: str
    named: Sequence[tuple[str, Problem]]
    network: Network | None = None
    is_step: bool = False

    @property
    def problems(self) -> list[Problem]:
        """The problems in order; a problem of several layers occurs several times."""
        return [problem for _, problem in self.named]


def step_request(name: str, title: str, named: Sequence[tuple[str, Problem]], arch: Architecture) -> TuneRequest:
    """Return the request for a training step on an architecture.

    Convolutions with a part of a batch norm that no family serves are left out: others compute both one after the
    other.
    """
    fused = (Conv2dStatistics, Conv2dGradientSums)
    kept = [one for one in named if not isinstance(one[1], fused) or serving(one[1], arch)]
    return TuneRequest(name, title, kept, is_step=True)


def network_request(name: str, title: str, network: Network, arch: Architecture) -> TuneRequest:
    """Return the request for a network on an architecture: its layers, and those of its alternatives.

    Layers of alternatives that no family serves are left out. Calls of torch's operators, such as the network as a
    whole, stay: Inductor compiles them.
    """
    if name != network.identity.model:
        network = replace(network, label=name)
    others = network.all_layers[len(network.layers) :]
    kept = [one for one in others if isinstance(one.problem, TorchCall) or serving(one.problem, arch)]
    return TuneRequest(name, title, [(one.name, one.problem) for one in (*network.layers, *kept)], network)


@dataclass(frozen=True)
class Searched:
    """The limits of a search that tell whether a problem is tuned.

    Attributes:
        only: Names of the families to try; if empty, all apart from those that must be named.
        trials: Number of configs that may be tried for a problem.
        seconds: The budget.
        compiles: Whether the plan of a network is compared with Inductor's code.
    """

    only: tuple[str, ...] = ()
    trials: int = 0
    seconds: float = 0.0
    compiles: bool = False

    def is_covered_by(self, final: Mapping[str, Any]) -> bool:
        """Return whether a run that searched something tried all that this one tries.

        Args:
            final: The details of a measurement of its finals.
        """
        only = final.get(ONLY, [])
        return (not only or (bool(self.only) and set(self.only) <= set(only))) and self.trials <= final.get(
            TRIALS, self.trials
        )


def missing(
    store: Store, target: TuningTarget, network: Network, searched: Searched, converting: Sequence[Layer] = ()
) -> TuneRequest | None:
    """Return the layers of a network that a database lacks for a device; None if it lacks neither layers nor plan.

    A layer is tuned once its finalists were timed, which is the end of a run: the layers of an interrupted run are
    missing. So are those that were timed while the device was slowed down. Layers of alternatives that no family serves
    are not. The network as a whole, on torch's operators, is missing until the plan was compared with it.

    Args:
        store: The database.
        target: The architecture and the device.
        network: The network.
        searched: The limits of the search.
        converting: Layers behind the network that convert its results.
    """
    assert target.name
    row = store.device(target.name)
    whole = [layer.problem for layer in network.whole.layers] if network.whole else []
    request = network_request(network.identity.model, network.key, network, target.arch)
    layers = [one for one in request.named if one[1] not in whole]
    layers += [(one.name, one.problem) for one in converting if serving(one.problem, target.arch)]
    named = missing_problems(store, target, layers, searched)
    is_planned = target.arch.is_cuda or bool(whole)
    if row and not named and (not is_planned or _is_compared(store, row, network, searched)):
        return None
    return replace(request, named=[*named, *(one for one in request.named if one[1] in whole)])


def missing_problems(
    store: Store, target: TuningTarget, named: Sequence[tuple[str, Problem]], searched: Searched
) -> list[tuple[str, Problem]]:
    """Return the problems whose finalists a database has not timed on a device after a search like this one."""
    assert target.name
    row = store.device(target.name)
    return [one for one in named if not (row and _is_tuned(store, row, one[1], searched))]


def _is_tuned(store: Store, device: Device, problem: Problem, searched: Searched) -> bool:
    measured = store.measurements(device, str(problem), "ok")
    finals = [one for one in measured if one.final and not one.details.get(THROTTLED)]
    return any(searched.is_covered_by(one.details) for one in finals)


def _is_compared(store: Store, device: Device, network: Network, searched: Searched) -> bool:
    """Return whether a network has a plan that was compared with Inductor's code, if that can be had.

    It cannot if Inductor has failed, or did not end within a budget that was no shorter.
    """
    plan = store.plan(device, network.key)
    if plan is None or plan.details.get(THROTTLED):
        return False
    if network.whole is None or not searched.compiles:
        return True
    if any(map(inductor.compiles, plan.details.get("torch_us", {}))):
        return True
    tried = store.measurements(device, str(network.whole.layers[0].problem))
    failed = [one for one in tried if one.kernel.family == inductor.FAMILY and one.status != "ok"]
    return any(searched.seconds <= CLOSE * one.details.get(RUN_SECONDS, math.inf) for one in failed)


def refuse_other_timing(store: Store, name: str, problems: Sequence[Problem], timing: Timing) -> None:
    """Raise DatabaseError if the database holds times of another timer or of other buffers: they are not comparable.

    Args:
        store: The database.
        name: Name of the device.
        problems: The problems that are to be timed.
        timing: How they are to be timed.
    """
    if not (row := store.device(name)):
        return
    for problem in problems:
        for measured in store.measurements(row, str(problem), "ok", most=1):
            for option, default in (("buffers", BUFFERS[0]), ("timer", TIMERS[0])):
                if (before := measured.details.get(option, default)) != getattr(timing, option):
                    given = f"{store.name} holds times measured with --{option} {before}"
                    raise DatabaseError(f"{given}: give the same option, or another --db")
