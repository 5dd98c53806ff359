"""Builds kernels: ninja compiles translation units of several kernels, named by a digest of their content.

A binary's name is a digest of its source, its headers, the compiler and the flags. A symbolic link with the name that a
kernel would have in a unit of its own points to the unit that has it, so an existing kernel is never built again in
another combination. Two processes that build the same unit end with the same file: each writes its own and renames it.
A unit that does not compile is split into its kernels, so a bad kernel fails alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil

from autotune.codegen import rendering, toolchain
from autotune.core import FamilyError, ToolchainError, ceil_div, paths
from autotune.families import Kernel, families, family

MAX_COST_RATIO = 2.0
"""Limit of the kernels' compile time in a unit as a multiple of its headers'; larger units delay the first result."""
POLL_SECONDS = 0.02
"""Interval at which the progress of a build is checked."""

_TIMEOUT_SECONDS = 900  # of a unit's compilation; the slowest known unit takes about one minute
_MIN_FREE_BYTES = 2**20  # with less, a compiler's failure is said to be the disk's
_NICENESS = 10  # of compilers, so that measurements do not wait for a core

# Words of a compiler's output that blame the machine and not the kernel -> the error. The first are strerror(ENOSPC) of
# glibc, which g++, nvcc and ptxas print.
_MACHINE_FAULTS = {
    "No space left on device": "no space left for kernels in {folder}: free some, or set AUTOTUNE_GENERATED",
}
_FIRST_ERROR = re.compile(r"\b(error|Error|fatal)\b")
_MAX_ERROR_LINES, _MAX_ERROR_CHARACTERS = 20, 4000  # of a compiler's output that are kept

_NINJA_RULE = f"""\
rule compile
  command = touch $out.started; timeout {_TIMEOUT_SECONDS} sh $out.sh > $out.log 2>&1 || {{ touch $out.failed; false; }}
  description = $out
"""


@dataclass(frozen=True)
class Unit:
    """A translation unit: kernels of one target and family."""

    kernels: tuple[Kernel, ...]

    @property
    def toolchain(self) -> toolchain.Toolchain:
        """The toolchain of the unit's target."""
        return toolchain.for_target(self.kernels[0].target)

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
        identity = "\n".join([rendering.unit_digest(self.kernels), self.toolchain.key])
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
    """

    unit: Unit
    path: Path | None
    error: str = ""
    seconds: float = 0.0


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


def build(kernels: Sequence[Kernel], jobs: int) -> Generator[Built]:
    """Compile kernels and yield each unit as it is ready; a kernel that fails is yielded alone, with its error.

    Args:
        kernels: Kernels of one target.
        jobs: Compilers that run at once.

    Raises:
        ToolchainError: There is no compiler for the target, or no space on the disk.
    """
    sound, faulty = renderable(kernels)
    exist, missing = existing(sound)
    yield from (*faulty, *exist)
    waiting = [units(missing, jobs)]
    while waiting:
        with closing(BuildBatch(waiting.pop(), jobs)) as batch:
            while batch.pending:
                for built in batch.finished():
                    if parts := split(built):
                        waiting.append(parts)
                    else:
                        yield built
                if batch.pending:
                    time.sleep(POLL_SECONDS)


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
    return [Built(Unit(tuple(group)), path) for path, group in found.items()], missing


def split(built: Built) -> list[Unit]:
    """Return the kernels of a unit that did not compile as units of their own; none if it compiled or has only one."""
    kernels = built.unit.kernels
    return [Unit((kernel,)) for kernel in kernels] if built.path is None and len(kernels) > 1 else []


class BuildBatch:
    """Units that one ninja process compiles in the background; close() ends it.

    Args:
        units: The units.
        jobs: Compilers that run at once.

    Attributes:
        pending: Units that `finished` has not returned yet.
    """

    def __init__(self, units: Sequence[Unit], jobs: int) -> None:
        self.pending = dict.fromkeys(units)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._exists = [unit for unit in self.pending if unit.path.exists()]
        missing = [unit for unit in self.pending if unit not in set(self._exists)]
        if not missing:
            return
        try:
            paths.generated().mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix="ninja-", dir=paths.generated()))
            for unit in missing:
                _write_source(unit, self._folder)
                _write_script(unit, self._folder)
            (self._folder / "build.ninja").write_text(_ninja_file(missing))
        except OSError as error:
            self.close()
            raise ToolchainError(f"cannot write kernels' sources to {paths.generated()}: {error.strerror}") from error
        # A session of its own: Ctrl-C reaches only this process, which then ends the compilers.
        self._process = subprocess.Popen(
            [shutil.which("ninja") or _bundled_ninja(), "-C", str(self._folder), "-k", "0", "-j", str(jobs)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with suppress(ProcessLookupError):  # ninja may have ended
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)

    def finished(self) -> list[Built]:
        """Return the units that have ended since the last call; does not wait."""
        ended = [Built(unit, unit.path) for unit in self._exists]
        self._exists = []
        for built in ended:
            del self.pending[built.unit]
        if self._folder and self._process:
            running = self._process.poll() is None
            for unit in list(self.pending):
                if unit.path.exists() or _failed(unit, self._folder).exists():
                    del self.pending[unit]
                    ended.append(_outcome(unit, self._folder))
            if not running and self.pending:
                code = self._process.returncode
                raise ToolchainError(f"ninja stopped with exit code {code} before all kernels were built")
        return ended

    def close(self) -> None:
        """End the compilers and remove their working folder."""
        if self._process and self._process.poll() is None:  # else another process may have its id by now
            _end_session(self._process.pid)
            self._process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _end_session(leader: int) -> None:
    """Kill all processes of a session. Its process group is not enough: ninja and timeout make groups of their own."""
    found = True
    while found:  # until no process was started meanwhile
        found = False
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):  # it has ended
                ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
                if os.getsid(process.pid) == leader and not ended:
                    process.kill()
                    found = True


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
    seconds = _seconds(unit, folder)
    if unit.path.exists():
        _link_latest(unit)
        return Built(unit, unit.path, seconds=seconds)
    log = _log(unit, folder)
    text = log.read_text(errors="replace").strip() if log.exists() else ""
    if fault := _machine_fault(text, folder):
        raise ToolchainError(fault)
    return Built(unit, None, _first_errors(text) or "the compiler was stopped and printed nothing", seconds)


def _machine_fault(text: str, folder: Path) -> str | None:
    """Return why the machine, not the kernel, made a compiler fail, or None. A full disk may also keep a log empty."""
    if shutil.disk_usage(folder).free < _MIN_FREE_BYTES:
        text += "No space left on device"
    found = next((fault for words, fault in _MACHINE_FAULTS.items() if words in text), None)
    return found and found.format(folder=paths.generated())


def _link_latest(unit: Unit) -> None:
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


def _seconds(unit: Unit, folder: Path) -> float:
    """Return the unit's compile time: from the start of its command to the last write of its result.

    It is 0 if another process made the unit before the command began.
    """
    started, result = _started(unit, folder), unit.path if unit.path.exists() else _failed(unit, folder)
    return max(0.0, result.stat().st_mtime - started.stat().st_mtime) if started.exists() else 0.0


def _bundled_ninja() -> str:
    import ninja

    return str(Path(ninja.BIN_DIR) / "ninja")
