"""What tables say of a tuned network: a line a layer, from the database alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.families import families
from autotune.problem import AvgPool2d, Convolution, Gemm, Problem, SeTail, SpaceToDepth, limit_us
from autotune.vendor import aten
from tuning_db import Store
from tuning_db.schema import Device, Measurement


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


def label(row: Measurement) -> str:
    """A candidate in few characters: family, config, launch values."""
    config = json.loads(row.kernel.config)
    if row.kernel.family == aten.FAMILY:
        return f"torch {config['memory_format']}"
    found = families().get(row.kernel.family)
    words = [row.kernel.family, found.label(config) if found else row.kernel.config]
    words += [f"{name} {value}" for name, value in row.launch.items() if value not in (0, 1) or name == "threads"]
    return " ".join(filter(None, words))


def brief(problem: Problem) -> str:
    """A problem in few characters: window/stride channels @ input size."""
    match problem:
        case Convolution():
            shape = f"{problem.r}x{problem.s}/{problem.stride[0]} {problem.c}>{problem.k} @{problem.h}x{problem.w}"
            gradient = [problem.operator.removeprefix("conv2d_")] if problem.operator != "conv2d" else []
            return " ".join([*gradient, shape, *([f"g{problem.groups}"] if problem.groups > 1 else [])])
        case Gemm():
            return f"gemm {problem.k}>{problem.n} @{problem.m}"
        case AvgPool2d():
            return f"pool {problem.r}x{problem.s}/{problem.stride[0]} {problem.c} @{problem.h}x{problem.w}"
        case SpaceToDepth():
            return f"s2d {problem.block}x{problem.block} {problem.c} @{problem.h}x{problem.w}"
        case SeTail():
            return f"se {problem.c}>{problem.hidden}>{problem.c} @{problem.h}x{problem.w}"
    return str(problem)
