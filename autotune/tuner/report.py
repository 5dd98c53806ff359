"""The results of tuning runs for tables: the winner of each problem, and failures with their reasons."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from autotune.core import Architecture, pareto_front
from autotune.families import AnyFamily, families, serving
from autotune.ir import Epilogue, Problem, limit_us
from autotune.ir.operators import TorchCall
from autotune.libraries import aten, cudnn, inductor
from autotune.measure import THROTTLED
from autotune.tuner.finals import FINALS_OF
from autotune.tuner.request import objective_values
from tuning_db import Store
from tuning_db.schema import Device, KernelRow, Measurement, PlanRow

SLOWED = "while other processes or heat slowed the device down: tune again"
"""Ends a sentence about times that are too long: their details have THROTTLED."""


@dataclass(frozen=True)
class LayerWinner:
    """The fastest candidate of a layer; values are None if nothing was measured.

    Attributes:
        layer: Name of the layer.
        problem: Its problem.
        winner: Text of the fastest candidate.
        time_us: Its time in microseconds.
        spread_us: Spread of its time in microseconds.
        speed_up: Time of PyTorch's fastest operator / time of the winner, if they were timed in the same rounds.
        share: Time at the device's limit / time of the winner.
        is_throttled: Whether the device was slowed down while the winner was timed.
    """

    layer: str
    problem: Problem
    winner: str = "-"
    time_us: float | None = None
    spread_us: float | None = None
    speed_up: float | None = None
    share: float | None = None
    is_throttled: bool = False


def layer_winners(store: Store, device: Device, layers: Sequence[tuple[str, Problem]]) -> Iterator[LayerWinner]:
    """Yield the winner of each layer, given by name and problem, on a device."""
    rankings = {problem: store.ranking(device, str(problem)) for problem in {problem for _, problem in layers}}
    for name, problem in layers:
        ranking = rankings[problem]
        if not ranking:
            yield LayerWinner(name, problem)
            continue
        best = ranking[0]
        time = best.median_us or 0.0
        operators = [row for row in ranking if row.kernel.family == aten.FAMILY and _are_comparable(best, row)]
        operator_us = operators[0].median_us if operators else None
        limit = limit_us(problem, device.flops_per_us, device.bytes_per_us)
        speed_up = operator_us / time if operator_us else None
        slowed = bool(best.details.get(THROTTLED))
        yield LayerWinner(name, problem, format_config(best), time, best.spread_us, speed_up, limit / time, slowed)


def _are_comparable(one: Measurement, other: Measurement) -> bool:
    """Return whether two candidates were timed in the same interleaved rounds."""
    return one.final and other.final and one.details.get(FINALS_OF) == other.details.get(FINALS_OF)


def sum_us(times: Sequence[float | None]) -> float | None:
    """Return the sum of some times in microseconds; None if one of them is not known."""
    known = [us for us in times if us]
    return sum(known) if len(known) == len(times) else None


def outcome_text(plan: PlanRow) -> str:
    """Return the time of a plan, and how many times faster it is than torch's operators for the whole network."""
    fastest: dict[str, float] = {}
    for candidate, us in plan.details.get("torch_us", {}).items():
        name = runner(candidate)
        fastest[name] = min(us, fastest.get(name, us))
    others = [f"{us / plan.median_us:.2f}x faster than {name} ({us:.1f} us)" for name, us in fastest.items()]
    if not any(map(inductor.compiles, plan.details.get("torch_us", {}))):
        others.append("not compared with torch.compile")
    if plan.details.get(THROTTLED):
        others.append(SLOWED)
    return ", ".join([f"{plan.median_us:.1f} us", *others])


def runner(candidate: str) -> str:
    """Return what runs a candidate for a whole network, as users call it."""
    return "torch.compile" if inductor.compiles(candidate) else "eager PyTorch"


def pareto_candidates(
    store: Store, device: Device, problem: Problem, objectives: Sequence[str]
) -> list[tuple[str, tuple[float, ...]]]:
    """Return the Pareto front of a problem's candidates: their texts and values, in ascending order of the values."""
    found: list[tuple[str, tuple[float, ...]]] = []
    for row in store.measurements(device, str(problem), "ok"):
        if values := objective_values(objectives, problem, row.median_us, row.details):
            found.append((format_config(row), values))
    return sorted((found[i] for i in pareto_front([values for _, values in found])), key=lambda one: one[1])


def format_config(row: Measurement) -> str:
    """Return a short text of a measured candidate: family, config and launch values."""
    return format_candidate(row.kernel, row.launch)


def format_candidate(kernel: KernelRow, launch: Mapping[str, int]) -> str:
    """Return a short text of a candidate: family, config and launch values."""
    if kernel.family == aten.FAMILY:
        return f"torch {json.loads(kernel.config)['memory_format']}"
    if kernel.family == cudnn.FAMILY:
        return cudnn.summary(json.loads(kernel.config))
    words = [kernel.family, _config(kernel)]
    words += [f"{name} {value}" for name, value in launch.items() if value not in (0, 1) or name == "threads"]
    return " ".join(filter(None, words))


def _config(row: KernelRow) -> str:
    found, config = families().get(row.family), json.loads(row.config)
    # A config of an earlier version may have other parameters.
    if found is None or config.keys() != {parameter.name for parameter in found.parameters}:
        return row.config
    return found.label(config)


@dataclass(frozen=True)
class Failure:
    """Candidates of one family that failed with the same message.

    Attributes:
        example: Text of one of them.
        status: "does not compile", or the status of the measurement.
        message: The error message.
        count: Number of candidates.
    """

    example: str
    status: str
    message: str
    count: int


def failures(
    store: Store, device: Device | None, problems: Sequence[Problem], rows: Iterable[KernelRow]
) -> list[Failure]:
    """Return the failures of some kernels, grouped by family and message.

    Args:
        store: The database.
        device: The device whose measurements count; None for failures of compilation only.
        problems: The problems whose measurements count.
        rows: The kernels.
    """
    rows = list(rows)
    variants = {(problem.dtype, str(problem.epilogue)) for problem in problems}
    found = [
        (row.family, "does not compile", row.error, f"{row.family} {_config(row)}")
        for row in rows
        if row.error and (row.dtype, row.epilogue) in variants
    ]
    ids = {row.id for row in rows}
    for problem in problems if device else []:
        assert device
        found += [
            (row.kernel.family, row.status, row.error or "", format_config(row))
            for row in store.measurements(device, str(problem))
            if row.status != "ok" and row.kernel_id in ids
        ]
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for name, status, message, example in found:
        grouped.setdefault((name, status, message), []).append(example)
    return [Failure(of[0], status, message, len(of)) for (_, status, message), of in grouped.items()]


def rejected_configs(problem: Problem, arch: Architecture) -> Iterator[str]:
    """Yield a sentence for each family that serves a problem and rejects configs, with an example and its reason."""
    for found in serving(problem, arch):
        if sentence := _rejected(found, arch, problem.dtype, problem.epilogue):
            yield sentence


@cache
def _rejected(found: AnyFamily, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    """Return how many configs are legal and an example of those that are not; None if all are legal."""
    rejected = list(found.illegal_configs(arch, dtype, epilogue))
    if not rejected:
        return None
    legal, (config, reason) = sum(1 for _ in found.configs(arch, dtype, epilogue)), rejected[0]
    example = f"{found.label(config)} is not: {reason}"
    return f"{found.name}: {legal} of {legal + len(rejected)} configs are legal; {example}"


def unsupported_reason(problem: Problem, arch: Architecture) -> str:
    """Return why no family has a kernel for a problem, in one sentence."""
    if isinstance(problem, TorchCall):
        return "it is a call of PyTorch, which no family implements"
    reasons = [
        f"{found.name}: {found.why_not_served(problem, arch) or 'none of its configs fits'}"
        for found in families().values()
        if isinstance(problem, found.operator) and arch.name in found.architectures
    ]
    reason = "; ".join(reasons) or f"none implements {problem.operator} on {arch.name}"
    return f"no family has a kernel for it ({reason})"
