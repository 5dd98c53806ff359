"""Kernels -> binaries: ninja compiles translation units of several kernels, named by their content.

A binary's name is a digest of its source, its headers, the compiler and the flags, and the name that a kernel would
have alone leads to the unit that it is in: so what exists is never built again, whatever it is asked for together with.
Two processes that build the same unit end with the same file: each writes a file of its own and renames it into place.
A unit that does not compile is taken apart, so one bad kernel fails alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotune.codegen import rendering, toolchain
from autotune.core import FamilyError, ToolchainError, ceil_div, paths
from autotune.families import families, family
from autotune.families.base import Kernel

WORTH = 2.0
"""Kernels are put into one unit until they cost so many times what its headers do; more would only delay the first."""

_COMPILE_SECONDS = 900  # a compiler that takes longer has hung
POLL_SECONDS = 0.02
_LEAST_SPACE = 2**20
_NICENESS = 10  # of compilers


@dataclass(frozen=True)
class Unit:
    """A translation unit: kernels of one target and family."""

    kernels: tuple[Kernel, ...]

    @property
    def toolchain(self) -> toolchain.Toolchain:
        """The compiler that serves the unit's target."""
        return toolchain.for_target(self.kernels[0].target)

    @property
    def folders(self) -> list[Path]:
        """Where its headers are."""
        return rendering.folders(self.kernels[0])

    @cached_property
    def source(self) -> str:
        """The unit's text."""
        return rendering.unit(self.kernels)

    @cached_property
    def name(self) -> str:
        """The digest of all that decides the binary."""
        identity = "\n".join([rendering.unit_digest(self.kernels), self.toolchain.key])
        return hashlib.sha256(identity.encode()).hexdigest()[:24]

    @cached_property
    def path(self) -> Path:
        """Where the binary is, once built."""
        return paths.generated() / self.kernels[0].target / f"{self.name}{self.toolchain.binary_suffix}"


@dataclass(frozen=True)
class Built:
    """A unit that was compiled (`path`), or a single kernel that would not (`error`: the compiler's words)."""

    unit: Unit
    path: Path | None
    error: str = ""
    seconds: float = 0.0


def units(kernels: Sequence[Kernel], jobs: int) -> list[Unit]:
    """Deal kernels of one target into units of one family each, the longest first.

    Each unit pays for its headers, so there are as few as keep all jobs busy to the end, by the families' own
    estimates of what headers and kernels cost.
    """
    by_family: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        by_family.setdefault(kernel.family, []).append(kernel)
    costs = {name: family(name).compile_seconds for name in by_family}
    share = sum(costs[kernel.family][1] for kernel in kernels) / max(1, jobs)
    result: list[tuple[float, Unit]] = []
    for name, group in by_family.items():
        header, each = costs[name]
        size = max(1, int(min(share, WORTH * header) / each + 1e-9))
        count = ceil_div(len(group), size)
        dealt = [tuple(group[i::count]) for i in range(count)]
        result += [(header + each * len(part), Unit(part)) for part in dealt]
    return [unit for _, unit in sorted(result, key=lambda cost_unit: -cost_unit[0])]


def together(name: str) -> int:
    """How many kernels of a family are worth a unit: as many as cost what its headers do. 1 if it is not known here."""
    found = families().get(name)
    return max(1, round(found.compile_seconds[0] / found.compile_seconds[1])) if found else 1


def build(kernels: Sequence[Kernel], jobs: int) -> Generator[Built]:
    """Compile kernels on `jobs` cores and yield each unit as it is ready; a failed kernel comes with its error.

    Raises ToolchainError if there is no compiler for the target or no room on the disk.
    """
    sound, faulty = renderable(kernels)
    exist, missing = existing(sound)
    yield from (*faulty, *exist)
    waiting = [units(missing, jobs)]
    while waiting:
        with closing(Batch(waiting.pop(), jobs)) as batch:
            while batch.pending:
                for built in batch.finished():
                    if parts := apart(built):
                        waiting.append(parts)
                    else:
                        yield built
                if batch.pending:
                    time.sleep(POLL_SECONDS)


def renderable(kernels: Sequence[Kernel]) -> tuple[list[Kernel], list[Built]]:
    """The kernels that have a text, and what to say of the others."""
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
    """Those kernels that are on the disk, in whatever unit, and the others."""
    found: dict[Path, list[Kernel]] = {}
    missing = []
    for kernel in kernels:
        alone = Unit((kernel,)).path
        if alone.exists():
            found.setdefault(alone.resolve(), []).append(kernel)
        else:
            missing.append(kernel)
    return [Built(Unit(tuple(group)), path) for path, group in found.items()], missing


def apart(built: Built) -> list[Unit]:
    """The kernels of a unit that would not compile, each alone, to find which are at fault; none if it was alone."""
    kernels = built.unit.kernels
    return [Unit((kernel,)) for kernel in kernels] if built.path is None and len(kernels) > 1 else []


class Batch:
    """Units that a ninja of their own compiles in the background, on `jobs` cores; close() ends what still runs.

    pending: those that finished() has not told of.
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
            commands = {unit: _write(unit, self._folder) for unit in missing}
            (self._folder / "build.ninja").write_text(_ninja_file(commands))
        except OSError as error:
            self.close()
            raise ToolchainError(f"cannot write kernels' sources to {paths.generated()}: {error.strerror}") from error
        # A session of its own: Ctrl-C reaches us alone, and we end the compilers with their whole group.
        self._process = subprocess.Popen(
            [shutil.which("ninja") or _bundled_ninja(), "-C", str(self._folder), "-k", "0", "-j", str(jobs)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with suppress(ProcessLookupError):  # what measures, and asks for more, is not to wait for a core
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)

    def finished(self) -> list[Built]:
        """What has ended since the last call. Does not wait."""
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
        """End the compilers and remove what they worked on."""
        if self._process and self._process.poll() is None:  # else its number may be another's by now
            _end_session(self._process.pid)
            self._process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _end_session(leader: int) -> None:
    """End all processes of a session. Not its group: ninja and timeout give what they start groups of its own."""
    found = True
    while found:  # what was started meanwhile
        found = False
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                state, _, _, session, *_ = stat.read_text().rpartition(") ")[2].split()
                if int(session) == leader and state not in "ZX":
                    os.kill(int(stat.parent.name), signal.SIGKILL)
                    found = True


def _write(unit: Unit, folder: Path) -> str:
    """Write the unit's source; returns the shell command that builds it in `folder` and renames it into place."""
    source = unit.path.with_suffix(unit.toolchain.source_suffix)
    source.parent.mkdir(parents=True, exist_ok=True)
    partial = folder / source.name
    partial.write_text(unit.source)
    os.replace(partial, source)
    output = folder / unit.path.name
    command = unit.toolchain.command(source, output, unit.folders)
    words = [word if word == "&&" else shlex.quote(word) for word in command]
    log, failed, started = _log(unit, folder), _failed(unit, folder), _started(unit, folder)
    limited = f"timeout {_COMPILE_SECONDS} sh -c {shlex.quote(' '.join(words))}"
    return f"touch {started}; {limited} > {log} 2>&1 && mv {output} {unit.path} || {{ touch {failed}; false; }}"


def _log(unit: Unit, folder: Path) -> Path:
    return folder / f"{unit.name}.log"


def _started(unit: Unit, folder: Path) -> Path:
    return folder / f"{unit.name}.started"


def _failed(unit: Unit, folder: Path) -> Path:
    return folder / f"{unit.name}.failed"


def _ninja_file(commands: dict[Unit, str]) -> str:
    lines = ["rule unit", "  command = $shell", "  description = $out"]
    for unit, command in commands.items():
        escaped = command.replace("$", "$$")
        lines += [f"build {unit.name}: unit", f"  shell = {escaped}"]
    return "\n".join(lines) + "\n"


def _outcome(unit: Unit, folder: Path) -> Built:
    seconds = _seconds(unit, folder)
    if unit.path.exists():
        _lead_to(unit)
        return Built(unit, unit.path, seconds=seconds)
    log = _log(unit, folder)
    text = log.read_text(errors="replace").strip() if log.exists() else ""
    # A compiler that cannot write may not be able to say so either.
    if "No space left on device" in text or shutil.disk_usage(folder).free < _LEAST_SPACE:
        raise ToolchainError(f"no space left for kernels in {paths.generated()}: free some, or set AUTOTUNE_GENERATED")
    return Built(unit, None, _first_errors(text) or "the compiler was stopped and said nothing", seconds)


def _lead_to(unit: Unit) -> None:
    """Make the name that each kernel would have alone lead to its unit."""
    for kernel in unit.kernels:
        alone = Unit((kernel,)).path
        if not alone.exists():
            with suppress(FileExistsError):  # another process was as quick
                alone.unlink(missing_ok=True)  # it led to what is gone
                alone.symlink_to(unit.path.name)


def _first_errors(text: str) -> str:
    """The lines that matter of a compiler's output: from the first error on, shortened."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if re.search(r"\b(error|Error|fatal)\b", line)), 0)
    return "\n".join(lines[first : first + 20])[:4000]


def _seconds(unit: Unit, folder: Path) -> float:
    """How long the unit took: from the start of its command to the last write of its result.

    Nothing, if another process made it before the command began.
    """
    started, result = _started(unit, folder), unit.path if unit.path.exists() else _failed(unit, folder)
    return max(0.0, result.stat().st_mtime - started.stat().st_mtime) if started.exists() else 0.0


def _bundled_ninja() -> str:
    import ninja

    return str(Path(ninja.BIN_DIR) / "ninja")
