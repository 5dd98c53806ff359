"""The trace of a tuning run: the result of every trial in a database, in a file small enough for git.

For each problem and family it holds the configs that were tried, their predicted costs, the seconds that they took, and
the time or the failure of each set of launch values. `simulator` searches it without a device.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.core import Architecture, AutotuneError, of_target, require_one_of
from autotune.families import Config, Value, families, family
from autotune.ir import Problem, parse
from autotune.libraries import aten
from autotune.search.space import Space
from tuning_db import Store
from tuning_db.schema import Device, Measurement

FORMAT = 1

LaunchResult = tuple[tuple[int, ...], float | str]
"""Launch values, and the time in microseconds or the status of a failure."""


@dataclass(frozen=True)
class ConfigTrace:
    """The result of a config.

    Attributes:
        compile_seconds: Compile time on one core.
        device_seconds: Time of loading, verifying and timing it with all launch values.
        launches: The result for each set of launch values.
    """

    compile_seconds: float
    device_seconds: float
    launches: tuple[LaunchResult, ...]

    @property
    def best_us(self) -> float | None:
        """Return the time with the best launch values, or None if all failed."""
        return min((result for _, result in self.launches if not isinstance(result, str)), default=None)

    @property
    def error(self) -> str | None:
        """Return the status of the failed launches, or None if one succeeded."""
        failures = dict.fromkeys(result for _, result in self.launches if isinstance(result, str))
        return ", ".join(failures) if self.best_us is None else None


@dataclass(frozen=True)
class SpaceTrace:
    """A space, and the result of each of its configs in the space's order."""

    space: Space
    results: tuple[ConfigTrace, ...]


@dataclass(frozen=True)
class TuneTrace:
    """All trials on one device.

    Attributes:
        device: Name of the device.
        target: Compilation target of the kernels.
        spaces: The trace of each space.
    """

    device: str
    target: str
    spaces: tuple[SpaceTrace, ...]

    def best_us(self) -> dict[Problem, float]:
        """Return the best time of each problem."""
        best: dict[Problem, float] = {}
        for traced in self.spaces:
            for us in (result.best_us for result in traced.results):
                if us is not None:
                    best[traced.space.problem] = min(us, best.get(traced.space.problem, math.inf))
        return best

    def by_problem(self) -> dict[Problem, list[SpaceTrace]]:
        """Return the traces of each problem's spaces."""
        found: dict[Problem, list[SpaceTrace]] = {}
        for traced in self.spaces:
            found.setdefault(traced.space.problem, []).append(traced)
        return found

    def of_families(self, names: Collection[str]) -> TuneTrace:
        """Return the spaces of some families, or of all if no name is given.

        Raises:
            UnknownNameError: A family is not in the trace.
        """
        known = {traced.space.family for traced in self.spaces}
        wanted = {require_one_of("family", name, sorted(known)) for name in names} or known
        return replace(self, spaces=tuple(traced for traced in self.spaces if traced.space.family in wanted))

    def merged(self, other: TuneTrace) -> TuneTrace:
        """Return the configs of two traces; one that both have keeps the result of this one.

        Raises:
            AutotuneError: They are of different devices.
        """
        if (self.device, self.target) != (other.device, other.target):
            raise AutotuneError(f"recordings of {self.device} and of {other.device} cannot be merged")
        spaces: dict[tuple[Problem, str], SpaceTrace] = {}
        for traced in (*self.spaces, *other.spaces):
            key = traced.space.problem, traced.space.family
            spaces[key] = _merged(spaces[key], traced) if key in spaces else traced
        return replace(self, spaces=tuple(spaces.values()))

    def save(self, path: Path) -> None:
        """Write gzipped JSON; the same trace gives the same bytes."""
        data = {
            "format": FORMAT,
            "device": self.device,
            "target": self.target,
            "tracks": [_to_json(traced) for traced in self.spaces],
        }
        text = json.dumps(data, separators=(",", ":"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))

    @classmethod
    def load(cls, path: Path) -> TuneTrace:
        """Read a file that `save` wrote.

        Raises:
            AutotuneError: The file cannot be read, or is not a trace of this format.
        """
        try:
            data = json.loads(gzip.decompress(path.read_bytes()))
        except OSError as error:
            raise AutotuneError(f"cannot read {path}: {error.strerror or error}") from error
        except (EOFError, ValueError) as error:
            raise AutotuneError(f"{path} is not a recording, or it is damaged: {error}") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise AutotuneError(
                f"{path} is not a recording of format {FORMAT}: make it again from its database with replay.py record"
            )
        return cls(data["device"], data["target"], tuple(map(_from_json, data["tracks"])))


def trace_of(store: Store, device: Device) -> TuneTrace:
    """Return the trace of a device's trials in a database.

    Finals are left out, since they are timed in another way. So are problems, families and parameters that this version
    does not define.
    """
    target, arch = device.target, of_target(device.target)
    if arch.is_cuda:
        arch = replace(arch, processors=device.details.get("processors", arch.processors))
    rows_of = {row.text: store.measurements(device, row.text) for row in store.problems()}
    compile_seconds = _compile_seconds(row for rows in rows_of.values() for row in rows)
    traces = []
    for text, rows in rows_of.items():
        try:
            problem = parse(text)
        except AutotuneError:
            continue
        grouped: dict[str, dict[str, list[Measurement]]] = {}
        for row in rows:
            kernel = row.kernel
            if kernel.family != aten.FAMILY and not row.final and kernel.target == target and _is_defined(row):
                grouped.setdefault(kernel.family, {}).setdefault(kernel.config, []).append(row)
        traces += [_space_trace(problem, name, configs, arch, compile_seconds) for name, configs in grouped.items()]
    return TuneTrace(device.name, target, tuple(traces))


def _merged(first: SpaceTrace, second: SpaceTrace) -> SpaceTrace:
    """Return the configs of two traces of one problem and family, in ascending order of the predicted cost."""
    space = first.space
    new = [i for i, config in enumerate(second.space.configs) if space.index_of(config) is None]
    rows = [
        *zip(space.configs, space.costs, first.results, strict=True),
        *((second.space.configs[i], second.space.costs[i], second.results[i]) for i in new),
    ]
    configs, costs, results = zip(*sorted(rows, key=lambda row: row[1]), strict=True)
    return SpaceTrace(Space(space.problem, space.family, configs, costs), results)


def _is_defined(row: Measurement) -> bool:
    """Return whether the family exists and has the parameters of the measured config."""
    found = families().get(row.kernel.family)
    return found is not None and list(json.loads(row.kernel.config)) == [p.name for p in found.parameters]


def _compile_seconds(rows: Iterable[Measurement]) -> dict[int, float]:
    """Return the compile time of each kernel by its id; it is stored with the kernel's first measurement only."""
    found: dict[int, float] = {}
    for row in rows:
        found[row.kernel_id] = found.get(row.kernel_id, 0.0) + row.details.get("seconds", {}).get("compile", 0.0)
    return found


def _space_trace(
    problem: Problem,
    name: str,
    rows_of: dict[str, list[Measurement]],
    arch: Architecture,
    compile_seconds: dict[int, float],
) -> SpaceTrace:
    """Return the trace of a space from its measurements, given by the JSON text of their config."""
    found = family(name)
    configs = list(map(json.loads, rows_of))
    space = Space.ranked(problem, name, configs, [found.cost(problem, config, arch) for config in configs])
    launch_names = [parameter.name for parameter in found.launch_parameters]
    results = [
        _config_trace(rows_of[json.dumps(config)], launch_names, compile_seconds, sum(found.compile_seconds))
        for config in space.configs
    ]
    return SpaceTrace(space, tuple(results))


def _config_trace(
    rows: list[Measurement], launch_names: list[str], compile_seconds: dict[int, float], estimate: float
) -> ConfigTrace:
    """Return the trace of a config; `estimate` is its compile time where none was recorded."""
    seconds = [row.details.get("seconds", {}) for row in rows]
    launches = [
        (
            tuple(row.launch.get(name, 0) for name in launch_names),
            row.status if row.median_us is None else _rounded(row.median_us),
        )
        for row in rows
    ]
    return ConfigTrace(
        compile_seconds=round(max(compile_seconds[row.kernel_id] for row in rows) or estimate, 3),
        device_seconds=round(sum(each.get(step, 0.0) for each in seconds for step in ("load", "verify", "time")), 4),
        launches=tuple(launches),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _to_json(traced: SpaceTrace) -> dict[str, Any]:
    """Return a space's trace by columns, which compress better than rows."""
    space = traced.space
    return {
        "problem": str(space.problem),
        "family": space.family,
        "parameters": list(space.configs[0]),
        "configs": [list(config.values()) for config in space.configs],
        "costs": [_rounded(cost) for cost in space.costs],
        "compile": [result.compile_seconds for result in traced.results],
        "seconds": [result.device_seconds for result in traced.results],
        "launches": [[values for values, _ in result.launches] for result in traced.results],
        "us": [[value for _, value in result.launches] for result in traced.results],
    }


def _from_json(data: dict[str, Any]) -> SpaceTrace:
    def config(values: list[Value]) -> Config:
        return dict(zip(data["parameters"], values, strict=True))

    space = Space(parse(data["problem"]), data["family"], tuple(map(config, data["configs"])), tuple(data["costs"]))
    results = tuple(
        ConfigTrace(compile_seconds, device_seconds, tuple(zip(map(tuple, launches), us, strict=True)))
        for compile_seconds, device_seconds, launches, us in zip(
            data["compile"], data["seconds"], data["launches"], data["us"], strict=True
        )
    )
    return SpaceTrace(space, results)
