"""Translation units: which kernels are compiled together, what came of it, and how it is shown in the trace of a run.

A binary's name is a digest of its source, its headers, the compiler and the flags. A symbolic link with the name that a
kernel would have in a unit of its own points to the unit that has it, so an existing kernel is never built again in
another combination.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.codegen import rendering, toolchain
from autotune.codegen.kernel_resources import KernelResources, image_resources
from autotune.core import FamilyError, ceil_div, paths, timeline
from autotune.families import Kernel, families, family

CUDA_COMPILER = "AUTOTUNE_CUDA_COMPILER"
"""Environment variable: nvcc, so that nvcc compiles what NVRTC would."""


MAX_COST_RATIO = 2.0
"""Limit of the kernels' compile time in a unit as a multiple of its headers'; larger units delay the first result."""


@dataclass(frozen=True)
class Unit:
    """A translation unit: kernels of one target and family."""

    kernels: tuple[Kernel, ...]

    @cached_property
    def toolchain(self) -> toolchain.Toolchain:
        """The toolchain of the unit's target and headers."""
        headers = rendering.foreign_headers(self.source, self.folders)
        prefers_nvcc = os.environ.get(CUDA_COMPILER) == "nvcc" or not headers <= toolchain.NVRTC_HEADERS
        return toolchain.for_target(self.kernels[0].target, prefers_nvcc)

    @property
    def folders(self) -> list[Path]:
        """The folders of its headers."""
        return rendering.folders(self.kernels[0])

    @cached_property
    def source(self) -> str:
        """The unit's source text."""
        return rendering.unit(self.kernels)

    @cached_property
    def name(self) -> str:
        """The digest of source, headers and toolchain."""
        identity = "\n".join([rendering.text_digest(self.source, self.folders), self.toolchain.key])
        return hashlib.sha256(identity.encode()).hexdigest()[:24]

    @cached_property
    def path(self) -> Path:
        """The path of the binary once it is built."""
        return paths.generated() / self.kernels[0].target / f"{self.name}{self.toolchain.binary_suffix}"


@dataclass(frozen=True)
class Built:
    """The result of building a unit.

    Attributes:
        unit: The unit.
        path: The binary, or None if the unit did not compile.
        error: The compiler's first errors.
        seconds: The time of the compilation.
        killed: The compiler was killed or got no memory, so nothing is known about the kernels.
        resources: Those of each kernel; none for shared libraries.
    """

    unit: Unit
    path: Path | None
    error: str = ""
    seconds: float = 0.0
    killed: bool = False
    resources: tuple[KernelResources, ...] = ()

    @classmethod
    def of(cls, unit: Unit, path: Path, seconds: float = 0.0) -> Built:
        """Return the result of a unit whose binary exists."""
        found = image_resources(path.read_bytes())
        symbols = [rendering.symbol(kernel) for kernel in unit.kernels]
        resources = tuple(found[symbol] for symbol in symbols) if found.keys() >= set(symbols) else ()
        return cls(unit, path, seconds=seconds, resources=resources)


def units(kernels: Sequence[Kernel], jobs: int) -> list[Unit]:
    """Distribute kernels of one target over units of one family each, and return them with the longest first.

    Each unit compiles its headers again, so there are only as many units as keep all jobs busy to the end, by the
    families' estimates (`compile_seconds`).
    """
    by_family: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        by_family.setdefault(kernel.family, []).append(kernel)
    costs = {name: family(name).compile_seconds for name in by_family}
    share = sum(costs[kernel.family][1] for kernel in kernels) / max(1, jobs)
    result: list[tuple[float, Unit]] = []
    for name, group in by_family.items():
        header, each = costs[name]
        size = max(1, int(min(share, MAX_COST_RATIO * header) / each + 1e-9))
        count = ceil_div(len(group), size)
        dealt = [tuple(group[i::count]) for i in range(count)]
        result += [(header + each * len(part), Unit(part)) for part in dealt]
    return [unit for _, unit in sorted(result, key=lambda cost_unit: -cost_unit[0])]


def kernels_per_unit(name: str) -> int:
    """Return how many kernels of a family compile in the time of a unit's headers; 1 if the family is not known."""
    found = families().get(name)
    return max(1, round(found.compile_seconds[0] / found.compile_seconds[1])) if found else 1


def renderable(kernels: Sequence[Kernel]) -> tuple[list[Kernel], list[Built]]:
    """Return the kernels whose template renders, and the results of the others."""
    sound: list[Kernel] = []
    faulty: list[Built] = []
    for kernel in kernels:
        try:
            rendering.render(kernel)
            sound.append(kernel)
        except FamilyError as error:
            faulty.append(Built(Unit((kernel,)), None, str(error)))
    return sound, faulty


def existing(kernels: Sequence[Kernel]) -> tuple[list[Built], list[Kernel]]:
    """Return the units that are on the disk with the kernels asked for, and the kernels that are in none."""
    found: dict[Path, list[Kernel]] = {}
    missing = []
    for kernel in kernels:
        alone = Unit((kernel,)).path
        if alone.exists():
            found.setdefault(alone.resolve(), []).append(kernel)
        else:
            missing.append(kernel)
    return [Built.of(Unit(tuple(group)), path) for path, group in found.items()], missing


def link_latest(unit: Unit) -> None:
    """Link the name that each kernel would have in a unit of its own to this unit."""
    for kernel in unit.kernels:
        alone = Unit((kernel,)).path
        if not alone.exists():
            with suppress(FileExistsError):  # another process has made the link
                alone.unlink(missing_ok=True)  # its unit was deleted
                alone.symlink_to(unit.path.name)


_MAX_SHOWN_CHARACTERS = 200  # a trace may hold thousands of units


def show(
    kernels: Sequence[Kernel], started: float, ended: float, error: str, resources: Sequence[KernelResources] = ()
) -> None:
    """Add the compilation of a translation unit to the trace.

    Args:
        kernels: The kernels of the unit, which are of one family.
        started: Wall-clock time of the start.
        ended: Wall-clock time of the end; that of the start if nothing was compiled.
        error: Why there is no binary; empty if there is one.
        resources: Those of each kernel; none if there is no device image.
    """
    if ended <= started or not timeline.is_recording():
        return
    known: dict[str, Any] = {"error": error[:_MAX_SHOWN_CHARACTERS]} if error else {}
    if resources:
        known["registers"] = [one.registers for one in resources]
        known["spill_bytes"] = [one.spill_bytes for one in resources]
    count = f", {len(kernels)} kernels" if len(kernels) > 1 else ""
    timeline.add(
        timeline.Lane.COMPILER,
        f"{kernels[0].family}{count}",
        timeline.of_wall_clock(started),
        timeline.of_wall_clock(ended),
        kernels=[str(kernel) for kernel in kernels],
        **known,
    )
