"""Runs the compilers of translation units: one ninja process for each batch, in a working folder of its own.

Two processes that build the same unit end with the same file: each writes its own and renames it. build_queue.py runs
several batches and tries again what was killed.

A folder is removed at the end of its process. A process that is killed leaves its folders behind. The next build
removes them. A folder is in use as long as a process holds the lock of its file: the kernel releases the lock when that
process ends, in whatever way.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from autotune.codegen.translation_units import Built, Unit, link_latest, show
from autotune.core import ProcessTree, ToolchainError, paths

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

_PREFIX, _LOCK = "ninja-", "lock"


class BuildFolder:
    """A folder of this process below `paths.generated()`; raises OSError if it cannot be made.

    Attributes:
        path: The folder.
    """

    def __init__(self) -> None:
        root = paths.generated()
        root.mkdir(parents=True, exist_ok=True)
        while True:  # another process may find the folder before it is locked, and remove it
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
            with suppress(FileNotFoundError):
                self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR)
                with suppress(OSError):  # a file system without locks, where nobody removes folders either
                    fcntl.flock(self._lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._lock)

    def remove(self) -> None:
        """Remove the folder with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_stale() -> None:
    """Remove the working folders of processes that have ended."""
    for path in paths.generated().glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, removed meanwhile, another user's, or a file system without locks
            lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


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
