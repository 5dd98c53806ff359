"""Runs `autotune tune` and `autotune bench` in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.core import AutotuneError
from autotune_cli.commands.bench import PREPARED
from autotune_cli.record import one_line


class BenchProcess:
    """A process that times a network at one batch size when `batches` is called.

    Args:
        batch: The batch size.
        reports: The beginning of the paths of what it prints, of Inductor's cache, and of the tuning database.
        database: Another tuning database.
        options: Further options of `autotune bench`.
        place: Environment variables of the process.
    """

    def __init__(
        self, batch: int, reports: Path, database: Path | None, options: Sequence[str], place: Mapping[str, str]
    ) -> None:
        self._report = reports.with_suffix(f".bench-{batch}.txt")
        inductor = reports.with_suffix(f".inductor-{batch}").absolute()
        self._environment = os.environ | place | {"TORCHINDUCTOR_CACHE_DIR": str(inductor)}  # not for the tune
        self._folder = tempfile.TemporaryDirectory()
        where = ("--db", str(database or f"{reports}.db"), "--out", f"{self._folder.name}/record.json")
        self._line = [*_command("bench", "--batch", str(batch)), *options, *where, "--pause"]
        self._process: subprocess.Popen[str] | None = None

    def start(self, compilers: int | None = None) -> None:
        """Start the process, which prepares all that needs no database.

        Args:
            compilers: Processes in which Inductor compiles; None for its own choice.
        """
        environment = self._environment
        if compilers:
            environment = environment | {"TORCHINDUCTOR_COMPILE_THREADS": str(compilers)}
        with self._report.open("w") as out:
            self._process = subprocess.Popen(
                self._line, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, text=True, env=environment
            )

    def wait_until_prepared(self) -> None:
        """Wait until the process needs the database, or has ended."""
        assert self._process
        while self._process.poll() is None and PREPARED not in self._report.read_text(errors="replace"):
            time.sleep(0.2)

    def batches(self) -> list[dict[str, Any]]:
        """Time the network; returns what `bench` records of its batch sizes; raises AutotuneError if that fails."""
        if self._process is None:
            self.start()
        assert self._process
        self._process.communicate("\n")
        _check("bench", self._process.returncode, self._report)
        batches: list[dict[str, Any]] = read(Path(self._folder.name) / "record.json")["batches"]
        return batches

    def stop(self) -> None:
        """End the process if it runs, and remove what it wrote."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


def run(command: str, *words: str, report: Path, place: Mapping[str, str]) -> None:
    """Run a command of autotune and write what it prints to a file; its progress goes to this process's standard error.

    Raises:
        AutotuneError: It failed.
    """
    with report.open("w") as out:
        done = subprocess.run(_command(command, *words), check=False, stdout=out, env=os.environ | place)
    _check(command, done.returncode, report)


def _command(name: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "autotune_cli", name, *words]


def _check(command: str, code: int, report: Path) -> None:
    """Raise AutotuneError with the last line of a report if the command that wrote it failed."""
    if code:
        last = report.read_text().strip().splitlines()[-1:] or [""]
        raise AutotuneError(f"autotune {command} ended with {code}: {last[0]}")


def read(path: Path) -> dict[str, Any]:
    """Return a record; raises AutotuneError for a file that is none."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise AutotuneError(f"'{path}' is not a record: {one_line(problem)}") from problem
    return record
