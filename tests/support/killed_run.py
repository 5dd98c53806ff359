"""Run tuners that may be killed at any moment, and read their databases with SQL alone."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa

from autotune.families import Kernel
from autotune.ir import Epilogue

TRIALS = 8
"""Configs per problem: a run takes some seconds beyond its start."""
OUTLIVES_SECONDS = 1.0
"""A process that lives longer after the end of its tuner is a defect."""

HANG_SECONDS = 120.0  # a run or the end of one takes no longer, also on a busy machine
POLL_SECONDS = 0.01
TABLES = ("device", "environment", "problem", "library", "kernel", "measurement", "plan")
_KEPT = {"device": "id, name, target"}  # a run that measures higher peak rates replaces them

_TAG = "AUTOTUNE_KILL_CAMPAIGN"  # environment variable with which a run's processes are found
_DUPLICATES = """
    SELECT count(*) FROM (
        SELECT 1 FROM measurement WHERE NOT final
        GROUP BY device_id, problem_id, kernel_id, launch{cast} HAVING count(*) > 1) AS twice"""
_STATE, _CAUGHT = 0, "SigCgt:"  # field 3 of /proc/PID/stat, line of /proc/PID/status

Rows = dict[str, set[tuple[str, ...]]]


class Database:
    """A database under attack, read with SQL alone.

    Args:
        address: What a tuner gets as --db.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_file = "://" not in address
        self._engine = sa.create_engine(f"sqlite:///{address}" if self.is_file else address, poolclass=sa.NullPool)

    def rows(self) -> Rows:
        """Return the rows of each table; none before a tuner has made the database."""
        if self.is_file and not Path(self.address).exists():
            return {table: set() for table in TABLES}
        with self._engine.connect() as connection:
            known = set(sa.inspect(connection).get_table_names())
            return {
                table: {
                    tuple(map(repr, row))
                    for row in connection.exec_driver_sql(f"SELECT {_KEPT.get(table, '*')} FROM {table}")
                }
                if table in known
                else set()
                for table in TABLES
            }

    def defects(self) -> Iterator[str]:
        """Yield what is wrong with the database itself."""
        if not self.rows()["problem"]:
            return
        with self._engine.connect() as connection:
            if self.is_file:
                if (found := connection.exec_driver_sql("PRAGMA integrity_check").fetchall()) != [("ok",)]:
                    yield f"integrity: {found[0][0]}"
                if connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall():
                    yield "integrity: a reference to a row that does not exist"
            duplicates = connection.exec_driver_sql(_DUPLICATES.format(cast="" if self.is_file else "::text"))
            if count := duplicates.scalar():
                yield f"duplicates: {count} trials"
            for digest, blob in connection.exec_driver_sql("SELECT digest, blob FROM library"):
                if hashlib.sha256(zlib.decompress(blob)).hexdigest() != digest:
                    yield f"integrity: binary {digest} is damaged"

    def failed_kernels(self) -> list[tuple[Kernel, str]]:
        """Return the kernels that are recorded not to compile, and their errors."""
        if not self.rows()["kernel"]:
            return []
        query = sa.text("SELECT family, config, dtype, epilogue, target, error FROM kernel WHERE error IS NOT NULL")
        with self._engine.connect() as connection:
            return [
                (Kernel.of(name, json.loads(config), dtype, Epilogue.parse(epilogue), target), error)
                for name, config, dtype, epilogue, target, error in connection.execute(query)
            ]


class Run:
    """One run of the tuner, as a process of its own.

    Args:
        database: The database.
        problems: The problems.
        folder: Where kernels are built and cached.
    """

    def __init__(self, database: Database, problems: Sequence[str], folder: Path) -> None:
        self.database = database
        self._tag = f"{_TAG}={os.getpid()}-{time.monotonic_ns()}"
        self._output = (folder / "output.txt").open("w+")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
            "AUTOTUNE_GENERATED": str(folder / "generated"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            _TAG: self._tag.partition("=")[2],
        }
        command = [sys.executable, "-m", "autotune_cli", "tune", "--arch", "cpu", "--db", database.address]
        command += ["--trials", str(TRIALS), "--budget", "10m", "--gain", "0%"]
        command += [word for text in problems for word in ("--problem", text)]
        # A shell that runs this check in the background has made it ignore SIGINT, and the tuner would inherit that.
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT,HUP,TERM", *command],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self.started = time.monotonic()

    @property
    def is_alive(self) -> bool:
        """True while the tuner runs."""
        return self.process.poll() is None

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self.started

    def processes(self) -> dict[int, str]:
        """Return process id and name of all processes of the run, without those that wait to be reaped."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):  # it has ended
                if entry.name.isdigit() and self._tag.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                    if rest.split()[_STATE] not in "ZX":
                        found[int(entry.name)] = name
        return found

    def victim(self, target: str, rng: random.Random) -> tuple[int, str] | None:
        """Return process id and name of a process of the kind; None if there is none now."""
        if target == "tuner":
            return (self.process.pid, "tuner") if self.is_alive else None
        found = []
        for pid, name in sorted(self.processes().items()):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                is_ours = any(word.endswith("process_tree_main.py") for word in words)
                is_worker = "autotune.measure.worker_main" in words
                is_compiler = not any(Path(words[0]).name.startswith(other) for other in ("python", "env"))
                if not is_ours and (is_worker if target == "worker" else is_compiler):
                    found.append((pid, "worker" if is_worker else name))
        return rng.choice(found) if found else None

    def handles_signals(self) -> bool:
        """Return whether the tuner has set its handlers; before that Python itself is still starting."""
        with suppress(OSError):
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
            caught = next(int(line.split()[1], 16) for line in lines if line.startswith(_CAUGHT))
            return bool(caught >> (signal.SIGTERM - 1) & 1)
        return False

    def end(self) -> tuple[int, float, str]:
        """Wait for the end; return the exit code, the seconds in which the other processes ended, and the output."""
        try:
            self.process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        ended = time.monotonic()
        while (left := self.processes()) and time.monotonic() - ended < 10 * OUTLIVES_SECONDS:
            time.sleep(POLL_SECONDS)
        gone = time.monotonic() - ended
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._output.seek(0)
        text = self._output.read()
        self._output.close()
        return self.process.returncode, gone, text
