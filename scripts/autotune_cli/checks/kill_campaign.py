"""Kill tuners, their workers and compilers at random moments, and check the rest.

Real tuners work on small problems for the CPU. After each kill the check reads
the database with SQL of its own. The exit code is 1 if a committed row is lost
or duplicated, the database is damaged, a process outlives its tuner by more
than a second, a build folder outlives the next start, a tuner ends with another
exit code than it should, or a kernel that compiles is recorded as one that does
not. Ctrl-C ends the check early.

Examples:
  autotune kill-campaign --kills 60 --target tuner,compiler
  autotune kill-campaign --kills 20 --signal TERM,HUP,INT
         --url postgresql+psycopg://user@host/postgres
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import sqlalchemy as sa
import torch
from rich.console import Console
from rich.table import Table

from autotune.codegen.build_queue import build
from autotune.families import Kernel
from autotune.ir import Epilogue
from autotune_cli import record
from autotune_cli.command_line import output, positive

TARGETS = {
    "tuner": "the tuning process",
    "worker": "its measuring process",
    "compiler": "ninja or a process below it",
}
SIGNALS = ("KILL", "TERM", "HUP", "INT")
TRIALS = 8
"""Configs per problem: a run takes some seconds beyond its start."""
OUTLIVES_SECONDS = 1.0
"""A process that lives longer after the end of its tuner is a defect."""

_HANG_SECONDS = 120.0  # a run or the end of one takes no longer, also on a busy machine
_LONGEST_SECONDS = {"tuner": 8.0, "worker": 4.0, "compiler": 2.0}  # from the start, first trial or last kill to a kill
_KILLS_PER_RUN = {"tuner": 1, "worker": 6, "compiler": 8}
_POLL_SECONDS = 0.01
_TAG = "AUTOTUNE_KILL_CAMPAIGN"  # environment variable with which a run's processes are found
_TABLES = ("device", "environment", "problem", "library", "kernel", "measurement", "plan")
_DUPLICATES = """
    SELECT count(*) FROM (
        SELECT 1 FROM measurement WHERE NOT final
        GROUP BY device_id, problem_id, kernel_id, launch{cast} HAVING count(*) > 1) AS twice"""
_STATE, _CAUGHT = 0, "SigCgt:"  # field 3 of /proc/PID/stat, line of /proc/PID/status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def choice(known: Sequence[str], text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := sorted(set(chosen) - set(known)):
            raise argparse.ArgumentTypeError(f"'{unknown[0]}' is none of {', '.join(known)}")
        return chosen

    parser.add_argument("--kills", type=positive, default=20, metavar="N", help="kills in all (default 20)")
    parser.add_argument(
        "--target",
        type=lambda text: choice(list(TARGETS), text),
        default="tuner",
        metavar="NAME",
        help="what is killed, or several, joined by commas, in turn: "
        + "; ".join(f"{name}: {meaning}" for name, meaning in TARGETS.items())
        + " (default tuner)",
    )
    parser.add_argument(
        "--signal",
        type=lambda text: choice(SIGNALS, text),
        default="KILL",
        metavar="NAME",
        help=f"{', '.join(SIGNALS)}; of several, joined by commas, one is drawn for each kill (default KILL)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of moments and problems (default 0)")
    parser.add_argument(
        "--url",
        metavar="URL",
        help="a PostgreSQL server on which the user may create databases, postgresql+psycopg://user@host/postgres "
        "(default: database files in a temporary folder)",
    )
    parser.add_argument("--json", type=output, metavar="FILE", help="write all kills and their defects")


@dataclass
class Kill:
    """One kill and what was found after it.

    Attributes:
        target: A key of TARGETS.
        signal: Name of the signal.
        process: Name of the process that got it.
        seconds: Time from the start of the run to the kill.
        trials: Measurements in the database at the kill.
        exit_code: How the run ended; negative for a signal.
        gone_seconds: Time from the end of the tuner to that of the last process of its run.
        defects: What should not be, in words.
    """

    target: str
    signal: str
    process: str
    seconds: float
    trials: int
    exit_code: int = 0
    gone_seconds: float = 0.0
    defects: list[str] = field(default_factory=list)


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
            return {table: set() for table in _TABLES}
        with self._engine.connect() as connection:
            known = set(sa.inspect(connection).get_table_names())
            return {
                table: {tuple(map(repr, row)) for row in connection.exec_driver_sql(f"SELECT * FROM {table}")}
                if table in known
                else set()
                for table in _TABLES
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
            self.process.wait(_HANG_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        ended = time.monotonic()
        while (left := self.processes()) and time.monotonic() - ended < 10 * OUTLIVES_SECONDS:
            time.sleep(_POLL_SECONDS)
        gone = time.monotonic() - ended
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._output.seek(0)
        text = self._output.read()
        self._output.close()
        return self.process.returncode, gone, text


class Campaign:
    """Kills runs one after the other.

    Args:
        args: The arguments of the command.
        folder: A folder for databases and what is built.
    """

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args, self._folder = args, folder
        self._rng = random.Random(args.seed)
        self._before: set[Path] = set()  # build folders that the last run has left
        self.kills: list[Kill] = []
        self.ended = 0

    def run(self, console: Console) -> None:
        """Kill until there were enough kills."""
        cycle = 0
        while len(self.kills) < self._args.kills:
            with self._database(cycle) as database:
                finished = False
                problems = self._problems(cycle)
                while not finished and len(self.kills) < self._args.kills:
                    before = len(self.kills)
                    finished = self._attack(database, problems)
                    for number, kill in enumerate(self.kills[before:], before + 1):
                        words = "; ".join(kill.defects) or "no defect"
                        console.print(
                            f"{number:4} SIG{kill.signal} to {kill.process} after {kill.seconds:.1f} s and "
                            f"{kill.trials} trials: exit code {kill.exit_code}, all gone in {kill.gone_seconds:.2f} s, "
                            f"{words}",
                            highlight=False, markup=False, soft_wrap=True,
                        )  # fmt: skip
                self.ended += finished
            cycle += 1

    def _attack(self, database: Database, problems: Sequence[str]) -> bool:
        """Start a run, kill some of its processes, and check what is left; return whether the run ended by itself."""
        target = min(self._args.target, key=lambda name: sum(kill.target == name for kill in self.kills))
        run = Run(database, problems, self._folder)
        kills: list[Kill] = []
        seen = database.rows()
        try:
            if self._rng.random() < 0.5:
                self._wait_for_trial(run)
            most = min(_KILLS_PER_RUN[target], self._args.kills - len(self.kills))
            while run.is_alive and len(kills) < most:
                if (found := self._next_victim(run, target)) is None:
                    break
                seen = database.rows()
                name = self._rng.choice(self._args.signal)
                with suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(found[0], getattr(signal, f"SIG{name}"))
                    kills.append(Kill(target, name, found[1], round(run.seconds, 2), len(seen["measurement"])))
            code, gone, text = run.end()
        finally:  # Ctrl-C
            run.process.kill()
        self._check(run, kills, seen, (code, gone, text))
        self.kills += kills
        return code == 0

    def _wait_for_trial(self, run: Run) -> None:
        known = len(run.database.rows()["measurement"])
        while run.is_alive and run.seconds < _HANG_SECONDS and len(run.database.rows()["measurement"]) == known:
            time.sleep(0.1)

    def _next_victim(self, run: Run, target: str) -> tuple[int, str] | None:
        """Wait for a random time and then for a process of the kind; return None if the run has ended before."""
        moment = time.monotonic() + self._rng.uniform(0, _LONGEST_SECONDS[target])
        while run.is_alive and run.seconds < _HANG_SECONDS:
            if time.monotonic() >= moment and run.handles_signals() and (found := run.victim(target, self._rng)):
                return found
            time.sleep(_POLL_SECONDS)
        return None

    def _check(self, run: Run, kills: list[Kill], seen: Rows, end: tuple[int, float, str]) -> None:
        """Add to the last kill what should not be."""
        code, gone, text = end
        defects = list(run.database.defects())
        after = run.database.rows()
        for table in _TABLES:
            if lost := seen[table] - after[table]:
                defects.append(f"lost: {len(lost)} rows of {table}")
        if gone > OUTLIVES_SECONDS:
            defects.append(f"outlived: the last process ended {gone:.1f} s after the tuner")
        expected = _exit_codes(kills)
        if code not in expected:
            last = text.strip().splitlines()[-1:]
            defects.append(f"exit code: {code} instead of {' or '.join(map(str, sorted(expected)))}: {last}")
        elif "Traceback" in text:
            defects.append(f"exit code: a traceback: {text.strip().splitlines()[-1]}")
        defects += _false_failures(run.database)
        left = set((self._folder / "generated").glob("ninja-*"))
        if code == 0 or len(after["measurement"]) > len(seen["measurement"]):  # else it may not have come to a build
            defects += [f"folder: {path.name} was left by an earlier run" for path in left & self._before]
        if code == 0 and left:
            defects.append("folder: a run that ended by itself left one")
        self._before = left
        for kill in kills:
            kill.exit_code, kill.gone_seconds = code, round(gone, 3)
        if defects and not kills:
            raise AssertionError(f"a run that was not killed: {defects}\n{text[-2000:]}")
        if kills:
            kills[-1].defects = defects

    def _problems(self, cycle: int) -> list[str]:
        """Return small problems that no earlier cycle had, so that their kernels are not built yet."""
        rng = random.Random(f"{self._args.seed} {cycle}")
        chains = ["relu", "bias", "bias,relu", "silu", "bias,silu", "bias,tanh", "gelu", "bias,gelu"]
        found = []
        for _ in range(2):
            size, filter_size = rng.randint(5, 9), rng.choice([1, 3])
            found.append(
                f"conv2d n=1 h={size} w={size} c={rng.choice([8, 16, 24])} k={rng.choice([16, 32, 48])} "
                f"r={filter_size} s={filter_size} pad={filter_size // 2} dtype=f32 epilogue={rng.choice(chains)}"
            )
        return found

    @contextmanager
    def _database(self, cycle: int) -> Iterator[Database]:
        if not self._args.url:
            yield Database(str(self._folder / f"{cycle}.db"))
            return
        name = f"kill_campaign_{os.getpid()}_{cycle}"
        server = sa.make_url(self._args.url)
        engine = sa.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        try:
            yield Database(server.set(database=name).render_as_string(hide_password=False))
        finally:
            with engine.connect() as connection:
                connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


def _false_failures(database: Database) -> Iterator[str]:
    for kernel, error in database.failed_kernels():
        if all(built.path for built in build([kernel], 1)):
            yield f"failure: {kernel} compiles, recorded is {error.splitlines()[0]}"


def _exit_codes(kills: Sequence[Kill]) -> set[int]:
    """Return the exit codes that a run may have; 0 also of a killed tuner, which may just have come to its end."""
    if not kills or kills[-1].target != "tuner":
        return {0}
    number = signal.Signals[f"SIG{kills[-1].signal}"]
    return {-number} if number == signal.SIGKILL else {0, 128 + number}


def _table(kills: Sequence[Kill]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("target")
    for name in ("kills", "amid trials", "with defects", "longest until all processes were gone, s"):
        table.add_column(name, justify="right")
    for target in TARGETS:
        of_target = [kill for kill in kills if kill.target == target]
        if of_target:
            table.add_row(
                target,
                str(len(of_target)),
                str(sum(kill.trials > 0 for kill in of_target)),
                str(sum(bool(kill.defects) for kill in of_target)),
                f"{max(kill.gone_seconds for kill in of_target):.2f}",
            )
    return table


def main(args: argparse.Namespace) -> int:
    console = Console()
    began = record.provenance(torch.device("cpu"))
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AUTOTUNE_GENERATED"] = f"{folder}/checked"  # of this process, which compiles again what failed
        campaign = Campaign(args, Path(folder))
        with suppress(KeyboardInterrupt):  # what was found until then is told and written
            campaign.run(console)
    kills, minutes = campaign.kills, (time.monotonic() - started) / 60
    console.print(_table(kills))
    console.print(f"{len(kills)} kills, {campaign.ended} runs that ended by themselves, in {minutes:.0f} minutes")
    if args.json:
        given = {"kills": args.kills, "target": args.target, "signal": args.signal, "seed": args.seed}
        found = {
            "database": "PostgreSQL" if args.url else "SQLite",
            "minutes": round(minutes, 1),
            "runs_ended": campaign.ended,
            "defects": sum(bool(kill.defects) for kill in kills),
        }
        record.write({**began, "arguments": given, **found, "kills": list(map(asdict, kills))}, args.json)
    return int(any(kill.defects for kill in kills))
