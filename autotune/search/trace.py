"""A recording: what every trial of a tuned database came to, in a file small enough for git.

It holds, for each problem and family, the configs that were tried, what the prior thought of them, the seconds that
they cost, and the time or the failure of each set of launch values. `simulator` searches it without a device.
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
from autotune.families import families, family
from autotune.families.base import Config, Value
from autotune.ir import Problem, parse
from autotune.libraries import aten
from autotune.search import Space
from tuning_db import Store
from tuning_db.schema import Device, Measurement

FORMAT = 1

Launched = tuple[tuple[int, ...], float | str]
"""Launch values, and microseconds or what went wrong."""


@dataclass(frozen=True)
class Recorded:
    """What a config came to. compile_seconds: of one core; seconds: loading, verifying and timing it on the device."""

    compile_seconds: float
    seconds: float
    launches: tuple[Launched, ...]

    @property
    def us(self) -> float | None:
        """The time of the best launch; None where all failed."""
        return min((came for _, came in self.launches if not isinstance(came, str)), default=None)


@dataclass(frozen=True)
class Track:
    """A space with what became of each of its configs, in the space's order."""

    space: Space
    results: tuple[Recorded, ...]


@dataclass(frozen=True)
class Recording:
    """All that was tried on one device."""

    device: str
    target: str
    tracks: tuple[Track, ...]

    def best_us(self) -> dict[Problem, float]:
        """The shortest time of each problem."""
        best: dict[Problem, float] = {}
        for track in self.tracks:
            for us in (result.us for result in track.results):
                if us is not None:
                    best[track.space.problem] = min(us, best.get(track.space.problem, math.inf))
        return best

    def of(self, families: Collection[str]) -> Recording:
        """The spaces of some families; all if there are none given. Raises UnknownNameError."""
        known = {track.space.family for track in self.tracks}
        wanted = {require_one_of("family", name, sorted(known)) for name in families} or known
        return Recording(self.device, self.target, tuple(t for t in self.tracks if t.space.family in wanted))

    def save(self, path: Path) -> None:
        """Write the file: gzipped JSON, columns of a space together, the same bytes for the same facts."""
        data = {
            "format": FORMAT,
            "device": self.device,
            "target": self.target,
            "tracks": [_columns(track) for track in self.tracks],
        }
        text = json.dumps(data, separators=(",", ":"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a file; raises AutotuneError if it is none."""
        try:
            data = json.loads(gzip.decompress(path.read_bytes()))
        except OSError as error:
            raise AutotuneError(f"cannot read {path}: {error.strerror or error}") from error
        except (EOFError, ValueError) as error:
            raise AutotuneError(f"{path} is not a recording, or damaged: {error}") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise AutotuneError(f"{path} is not a recording that this version reads: make it again from its database")
        return cls(data["device"], data["target"], tuple(map(_track, data["tracks"])))


def record(store: Store, device: Device) -> Recording:
    """What a database knows of a device's trials; finals are left out, for they were timed in another way.

    A problem or a family that is not defined here is left out.
    """
    target, arch = device.target, of_target(device.target)
    if arch.is_cuda:
        arch = replace(arch, processors=device.details.get("processors", arch.processors))
    everything = {row.text: store.measurements(device, row.text) for row in store.problems()}
    compiled = _compile_seconds(row for rows in everything.values() for row in rows)
    tracks = []
    for text, rows in everything.items():
        try:
            problem = parse(text)
        except AutotuneError:
            continue
        grouped: dict[str, dict[str, list[Measurement]]] = {}
        for row in rows:
            kernel = row.kernel
            if kernel.family != aten.FAMILY and not row.final and kernel.target == target and _is_ours(row):
                grouped.setdefault(kernel.family, {}).setdefault(kernel.config, []).append(row)
        tracks += [_recorded(problem, name, configs, arch, compiled) for name, configs in grouped.items()]
    return Recording(device.name, target, tuple(tracks))


def _is_ours(row: Measurement) -> bool:
    """Whether its family has the parameters that it had then."""
    found = families().get(row.kernel.family)
    return found is not None and list(json.loads(row.kernel.config)) == [p.name for p in found.parameters]


def _compile_seconds(rows: Iterable[Measurement]) -> dict[int, float]:
    """Of each kernel's number; the seconds stand with the first of its measurements."""
    found: dict[int, float] = {}
    for row in rows:
        found[row.kernel_id] = found.get(row.kernel_id, 0.0) + row.details.get("seconds", {}).get("compile", 0.0)
    return found


def _recorded(
    problem: Problem, name: str, configs: dict[str, list[Measurement]], arch: Architecture, compiled: dict[int, float]
) -> Track:
    chosen = family(name)
    values = list(map(json.loads, configs))
    space = Space.ranked(problem, name, values, [chosen.cost(problem, config, arch) for config in values])
    names = [parameter.name for parameter in chosen.launch_parameters]
    estimate = sum(chosen.compile_seconds)
    results = []
    for config in space.configs:
        rows = configs[json.dumps(config)]
        spent = [row.details.get("seconds", {}) for row in rows]
        results.append(
            Recorded(
                round(max(compiled[row.kernel_id] for row in rows) or estimate, 3),
                round(sum(part.get(step, 0.0) for part in spent for step in ("load", "verify", "time")), 4),
                tuple(
                    (
                        tuple(row.launch.get(key, 0) for key in names),
                        row.status if row.median_us is None else _rounded(row.median_us),
                    )
                    for row in rows
                ),
            )
        )
    return Track(space, tuple(results))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _columns(track: Track) -> dict[str, Any]:
    space = track.space
    return {
        "problem": str(space.problem),
        "family": space.family,
        "parameters": list(space.configs[0]),
        "configs": [list(config.values()) for config in space.configs],
        "costs": [_rounded(cost) for cost in space.costs],
        "compile": [result.compile_seconds for result in track.results],
        "seconds": [result.seconds for result in track.results],
        "launches": [[values for values, _ in result.launches] for result in track.results],
        "us": [[came for _, came in result.launches] for result in track.results],
    }


def _track(data: dict[str, Any]) -> Track:
    def config(values: list[Value]) -> Config:
        return dict(zip(data["parameters"], values, strict=True))

    space = Space(parse(data["problem"]), data["family"], tuple(map(config, data["configs"])), tuple(data["costs"]))
    results = tuple(
        Recorded(compile_seconds, seconds, tuple(zip(map(tuple, launches), us, strict=True)))
        for compile_seconds, seconds, launches, us in zip(
            data["compile"], data["seconds"], data["launches"], data["us"], strict=True
        )
    )
    return Track(space, results)
