"""Builds kernels: ninja compiles translation units of several kernels, named by a digest of their content.

A binary's name is a digest of its source, its headers, the compiler and the flags. A symbolic link with the name that a
kernel would have in a unit of its own points to the unit that has it, so an existing kernel is never built again in
another combination. Two processes that build the same unit end with the same file: each writes its own and renames it.
build_queue.py runs several batches and tries again what was killed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotune.codegen import rendering, source_digest, toolchain
from autotune.codegen.build_folder import BuildFolder
from autotune.codegen.build_slices import show
from autotune.codegen.kernel_resources import KernelResources, image_resources
from autotune.core import FamilyError, ProcessTree, ToolchainError, ceil_div, paths
from autotune.families import Kernel, families, family

CUDA_COMPILER = "AUTOTUNE_CUDA_COMPILER"
"""Environment variable: nvcc, so that nvcc compiles what NVRTC would."""
MAX_COST_RATIO = 2.0
"""Limit of the kernels' compile time in a unit as a multiple of its headers'; larger units delay the first result."""
_TIMEOUT_SECONDS = 900  # of a unit's compilation; the slowest known unit takes about one minute
_MIN_FREE_BYTES = 2**20  # with less, a compiler's failure is said to be the disk's
_NICENESS = 10  # added to that of compilers, so that measurements do not wait for a core

# Words of a compiler's output that blame the machine and not the kernel -> the error. The first are strerror(ENOSPC) of
# glibc, which g++, nvcc and ptxas print.
_MACHINE_FAULTS = {
    "No space left on device": "no space left for kernels in {folder}: free some, or set AUTOTUNE_GENERATED",
}

# What ends a compiler from outside: the kernel out of memory (SIGKILL), a user or a service manager. Signals that a
# compiler causes itself, such as SIGSEGV, are not among them: the kernel's source provokes those again.
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# The words with which g++, collect2 and nvcc report that a program which they started was ended so, and with which
# cc1plus says itself that it got no memory. Their own exit code is then that of any error.
_KILLED = re.compile(
    r"(Killed|Terminated|Hangup|Interrupt) signal terminated program|internal compiler error: (Killed|Terminated)"
    rf"|(died due to|terminated with) signal ({'|'.join(str(int(number)) for number in _OUTSIDE)})\b"
    r"|out of memory allocating|virtual memory exhausted"
)
_TIMED_OUT = 124  # exit code of timeout(1); it passes on a signal that ended its command, and sh says 128 + n for one
_FIRST_ERROR = re.compile(r"\b(error|Error|fatal)\b")
_MAX_ERROR_LINES, _MAX_ERROR_CHARACTERS = 20, 4000  # of a compiler's output that are kept

_NINJA_RULE = f"""\
rule compile
  command = touch $out.started; timeout {_TIMEOUT_SECONDS} sh $out.sh > $out.log 2>&1 || \
    {{ echo $$? > $out.code; mv $out.code $out.failed; false; }}
  description = $out
"""


@dataclass(frozen=True)
class Unit:
    """A translation unit: kernels of one target and family."""

    kernels: tuple[Kernel, ...]

    @cached_property
    def toolchain(self) -> toolchain.Toolchain:
        """The toolchain of the unit's target and headers."""
        headers = source_digest.foreign_headers(self.source, self.folders)
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
        identity = "\n".join([source_digest.text_digest(self.source, self.folders), self.toolchain.key])
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


class BuildBatch:
    """Units that one ninja process compiles in the background; close() ends it.

    Args:
        units: The units.
        jobs: Compilers that run at once.
        cores: The cores that they may run on; none for all.

    Attributes:
        pending: Units that `finished` has not returned yet.
        ended: Exit code of ninja, negative for a signal, once `finished` has found that it has ended; if units are
            pending then, they have no result.
    """

    def __init__(self, units: Sequence[Unit], jobs: int, cores: Collection[int] = ()) -> None:
        self.pending = dict.fromkeys(units)
        self.ended: int | None = None
        self._process: ProcessTree | None = None
        self._folder: BuildFolder | None = None
        self._exists = [unit for unit in self.pending if unit.path.exists()]
        missing = [unit for unit in self.pending if unit not in set(self._exists)]
        if not missing:
            return
        try:
            self._folder = BuildFolder()
            for unit in missing:
                _write_source(unit, self._folder.path)
                _write_script(unit, self._folder.path)
            (self._folder.path / "build.ninja").write_text(_ninja_file(missing))
        except OSError as error:
            self.close()
            raise ToolchainError(f"cannot write kernels' sources to {paths.generated()}: {error.strerror}") from error
        ninja = [shutil.which("ninja") or _bundled_ninja(), "-C", str(self._folder.path), "-k", "0", "-j", str(jobs)]
        self._process = ProcessTree(["nice", "-n", str(_NICENESS), *ninja], quiet=True, cores=cores)

    def finished(self) -> list[Built]:
        """Return the units that have ended since the last call; does not wait."""
        finished = [Built.of(unit, unit.path) for unit in self._exists]
        self._exists = []
        for built in finished:
            del self.pending[built.unit]
        if self._folder and self._process:
            ended = self._process.poll()  # before the units are read: if ninja has ended, their output is complete
            for unit in list(self.pending):
                if unit.path.exists() or _failed(unit, self._folder.path).exists():
                    del self.pending[unit]
                    built = _outcome(unit, self._folder.path)
                    show(unit.kernels, *_interval(unit, self._folder.path), built.error, built.resources)
                    finished.append(built)
            if ended is not None and self.pending and (fault := _machine_fault("", self._folder.path)):
                raise ToolchainError(fault)
            self.ended = ended
        return finished

    def close(self) -> None:
        """End the compilers and remove their working folder."""
        if self._process:
            self._process.stop()
        if self._folder:
            for unit in self.pending:
                if (started := _started(unit, self._folder.path)).exists():
                    show(unit.kernels, started.stat().st_mtime, time.time(), "given up")
            self._folder.remove()


def _write_source(unit: Unit, folder: Path) -> None:
    """Write the unit's source beside its binary; a rename makes it complete for other processes at once."""
    source = _source(unit)
    source.parent.mkdir(parents=True, exist_ok=True)
    partial = folder / source.name
    partial.write_text(unit.source)
    os.replace(partial, source)


def _write_script(unit: Unit, folder: Path) -> None:
    """Write the shell script that compiles the unit in `folder` and then moves the binary to its path."""
    output = folder / unit.path.name
    commands = [*unit.toolchain.commands(_source(unit), output, unit.folders), ["mv", str(output), str(unit.path)]]
    (folder / f"{unit.name}.sh").write_text("\n".join(["set -e", *map(shlex.join, commands)]) + "\n")


def _ninja_file(units: Sequence[Unit]) -> str:
    return _NINJA_RULE + "".join(f"build {unit.name}: compile\n" for unit in units)


def _source(unit: Unit) -> Path:
    return unit.path.with_suffix(unit.toolchain.source_suffix)


def _log(unit: Unit, folder: Path) -> Path:
    return folder / f"{unit.name}.log"


def _started(unit: Unit, folder: Path) -> Path:
    return folder / f"{unit.name}.started"


def _failed(unit: Unit, folder: Path) -> Path:
    return folder / f"{unit.name}.failed"


def _outcome(unit: Unit, folder: Path) -> Built:
    """Return the result of a unit that has ended; raises ToolchainError if the machine is at fault."""
    started, ended = _interval(unit, folder)
    seconds = ended - started
    if unit.path.exists():
        link_latest(unit)
        return Built.of(unit, unit.path, seconds)
    log = _log(unit, folder)
    text = log.read_text(errors="replace").strip() if log.exists() else ""
    if fault := _machine_fault(text, folder):
        raise ToolchainError(fault)
    code = int(_failed(unit, folder).read_text())
    if code == _TIMED_OUT:
        return Built(unit, None, f"the compilation took longer than {_TIMEOUT_SECONDS} s", seconds)
    killed = code - 128 in _OUTSIDE or _KILLED.search(text) is not None
    return Built(unit, None, _first_errors(text) or "the compiler was stopped and printed nothing", seconds, killed)


def _machine_fault(text: str, folder: Path) -> str | None:
    """Return why the machine, not the kernel, made a compiler fail, or None. A full disk may also keep a log empty."""
    if shutil.disk_usage(folder).free < _MIN_FREE_BYTES:
        text += "No space left on device"
    found = next((fault for words, fault in _MACHINE_FAULTS.items() if words in text), None)
    return found and found.format(folder=paths.generated())


def link_latest(unit: Unit) -> None:
    """Link the name that each kernel would have in a unit of its own to this unit."""
    for kernel in unit.kernels:
        alone = Unit((kernel,)).path
        if not alone.exists():
            with suppress(FileExistsError):  # another process has made the link
                alone.unlink(missing_ok=True)  # its unit was deleted
                alone.symlink_to(unit.path.name)


def _first_errors(text: str) -> str:
    """Return a compiler's output from its first error on, shortened."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if _FIRST_ERROR.search(line)), 0)
    return "\n".join(lines[first : first + _MAX_ERROR_LINES])[:_MAX_ERROR_CHARACTERS]


def _interval(unit: Unit, folder: Path) -> tuple[float, float]:
    """Return the wall-clock times of the start of the unit's command and of the last write of its result.

    They are equal if another process made the unit before the command began.
    """
    started, result = _started(unit, folder), unit.path if unit.path.exists() else _failed(unit, folder)
    ended = result.stat().st_mtime
    return (min(started.stat().st_mtime, ended) if started.exists() else ended), ended


def _bundled_ninja() -> str:
    import ninja

    return str(Path(ninja.BIN_DIR) / "ninja")
