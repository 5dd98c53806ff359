"""What tables say of what was tuned: each problem's winner, and what failed and why."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from autotune.core import Architecture, pareto_front
from autotune.families import families, serving
from autotune.families.base import AnyFamily
from autotune.ir import Epilogue, Problem, TorchCall, limit_us
from autotune.libraries import aten, cudnn
from autotune.tuner.objectives import OBJECTIVES
from tuning_db import Store
from tuning_db.schema import Device, KernelRow, Measurement


@dataclass(frozen=True)
class Line:
    """A layer's winner. times in microseconds; None where nothing was measured.

    speed_up: the best torch operator's time over the winner's; share: the device's limit over the winner's time.
    """

    layer: str
    problem: Problem
    winner: str = "-"
    time_us: float | None = None
    spread_us: float | None = None
    speed_up: float | None = None
    share: float | None = None


def lines(store: Store, device: Device, layers: Sequence[tuple[str, Problem]]) -> Iterator[Line]:
    """The winner of each layer (name, problem) on a device."""
    for name, problem in layers:
        ranking = store.ranking(device, str(problem))
        if not ranking:
            yield Line(name, problem)
            continue
        best = ranking[0]
        time = best.median_us or 0.0
        library = next((row.median_us for row in ranking if row.kernel.family == aten.FAMILY), None)
        limit = limit_us(problem, device.flops_per_us, device.bytes_per_us)
        speed_up = library / time if library else None
        yield Line(name, problem, label(best), time, best.spread_us, speed_up, limit / time)


def pareto(
    store: Store, device: Device, problem: Problem, objectives: Sequence[str]
) -> list[tuple[str, tuple[float, ...]]]:
    """A problem's candidates, with their values, that no other beats in all objectives; the best by the first first."""
    found: list[tuple[str, tuple[float, ...]]] = []
    for row in store.measurements(device, str(problem), "ok"):
        values = [OBJECTIVES[name].value(problem, row.median_us or 0.0, row.details) for name in objectives]
        if None not in values:
            found.append((label(row), tuple(v for v in values if v is not None)))
    return sorted((found[i] for i in pareto_front([values for _, values in found])), key=lambda one: one[1])


def label(row: Measurement) -> str:
    """A candidate in few characters: family, config, launch values."""
    if row.kernel.family == aten.FAMILY:
        return f"torch {json.loads(row.kernel.config)['memory_format']}"
    if row.kernel.family == cudnn.FAMILY:
        return cudnn.summary(json.loads(row.kernel.config))
    words = [row.kernel.family, _config(row.kernel)]
    words += [f"{name} {value}" for name, value in row.launch.items() if value not in (0, 1) or name == "threads"]
    return " ".join(filter(None, words))


def _config(row: KernelRow) -> str:
    found = families().get(row.family)
    return found.label(json.loads(row.config)) if found else row.config


@dataclass(frozen=True)
class Failure:
    """Candidates of one family that failed in the same words. example: one of them; status: as in the database."""

    example: str
    status: str
    words: str
    count: int


def failures(
    store: Store, device: Device | None, problems: Sequence[Problem], rows: Iterable[KernelRow]
) -> list[Failure]:
    """What of these kernels would not compile, or failed on these problems on a device."""
    rows = list(rows)
    chains = {(problem.dtype, str(problem.epilogue)) for problem in problems}
    found = [
        (row.family, "does not compile", row.error, f"{row.family} {_config(row)}")
        for row in rows
        if row.error and (row.dtype, row.epilogue) in chains
    ]
    ids = {row.id for row in rows}
    for problem in problems if device else []:
        assert device
        found += [
            (row.kernel.family, row.status, row.error or "", label(row))
            for row in store.measurements(device, str(problem))
            if row.status != "ok" and row.kernel_id in ids
        ]
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for name, status, words, example in found:
        grouped.setdefault((name, status, words), []).append(example)
    return [Failure(of[0], status, words, len(of)) for (_, status, words), of in grouped.items()]


def illegal(problem: Problem, arch: Architecture) -> Iterator[str]:
    """A sentence for each family that serves the problem and has configs that are not legal, with one of them."""
    for found in serving(problem, arch):
        if not found.opt_in and (sentence := _refused(found, arch, problem.dtype, problem.epilogue)):
            yield sentence


@cache
def _refused(found: AnyFamily, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    """How many configs are not legal, and one of them; None where all are."""
    refused = list(found.illegal_configs(arch, dtype, epilogue))
    if not refused:
        return None
    legal, (config, reason) = sum(1 for _ in found.configs(arch, dtype, epilogue)), refused[0]
    example = f"not legal is {found.label(config)}: {reason}"
    return f"{found.name}: {legal} of {legal + len(refused)} configs are legal; {example}"


def unserved(problem: Problem, arch: Architecture) -> str:
    """Why no family has a kernel for a problem, in one sentence."""
    if isinstance(problem, TorchCall):
        return "it is no problem of ours"
    mine = [found for found in families().values() if isinstance(problem, found.operator)]
    reasons = [
        f"{found.name}: {found.why_not_served(problem, arch) or 'none of its configs fits'}"
        for found in mine
        if arch.name in found.architectures
    ]
    return f"no family has a kernel for it ({'; '.join(reasons) or f'none solves {problem.operator} on {arch.name}'})"
