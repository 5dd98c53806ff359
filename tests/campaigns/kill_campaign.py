"""Kill tuners, their workers and compilers at random moments, and check the rest.

Real tuners work on small problems for the CPU. After each kill the check reads
the database with SQL of its own. The exit code is 1 if a committed row is lost
or duplicated, the database is damaged, a process outlives its tuner by more
than a second, a build folder outlives the next start, a tuner ends with another
exit code than it should, or a kernel that compiles is recorded as one that does
not. Ctrl-C ends the check early.

Examples:
  python tests/campaigns/kill_campaign.py --kills 60 --target tuner,compiler
  python tests/campaigns/kill_campaign.py --kills 20 --signal TERM,HUP,INT
         --url postgresql+psycopg://user@host/postgres
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import sqlalchemy as sa
import torch
from killed_run import HANG_SECONDS, OUTLIVES_SECONDS, POLL_SECONDS, TABLES, Database, Rows, Run
from rich.console import Console
from rich.table import Table

from autotune.codegen.build_queue import build
from autotune_cli.command_line import output, positive
from autotune_cli.main import run_program
from autotune_cli.record import provenance, write

TARGETS = {
    "tuner": "the tuning process",
    "worker": "its measuring process",
    "compiler": "ninja or a process below it",
}
SIGNALS = ("KILL", "TERM", "HUP", "INT")

_LONGEST_SECONDS = {"tuner": 8.0, "worker": 4.0, "compiler": 2.0}  # from the start, first trial or last kill to a kill
_KILLS_PER_RUN = {"tuner": 1, "worker": 6, "compiler": 8}


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
    parser.add_argument("--out", type=output, metavar="FILE.json", help="all kills and their defects")


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
        while run.is_alive and run.seconds < HANG_SECONDS and len(run.database.rows()["measurement"]) == known:
            time.sleep(0.1)

    def _next_victim(self, run: Run, target: str) -> tuple[int, str] | None:
        """Wait for a random time and then for a process of the kind; return None if the run has ended before."""
        moment = time.monotonic() + self._rng.uniform(0, _LONGEST_SECONDS[target])
        while run.is_alive and run.seconds < HANG_SECONDS:
            if time.monotonic() >= moment and run.handles_signals() and (found := run.victim(target, self._rng)):
                return found
            time.sleep(POLL_SECONDS)
        return None

    def _check(self, run: Run, kills: list[Kill], seen: Rows, end: tuple[int, float, str]) -> None:
        """Add to the last kill what should not be."""
        code, gone, text = end
        defects = list(run.database.defects())
        after = run.database.rows()
        for table in TABLES:
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
    began = provenance(torch.device("cpu"))
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AUTOTUNE_GENERATED"] = f"{folder}/checked"  # of this process, which compiles again what failed
        campaign = Campaign(args, Path(folder))
        with suppress(KeyboardInterrupt):  # what was found until then is told and written
            campaign.run(console)
    kills, minutes = campaign.kills, (time.monotonic() - started) / 60
    console.print(_table(kills))
    console.print(f"{len(kills)} kills, {campaign.ended} runs that ended by themselves, in {minutes:.0f} minutes")
    if args.out:
        given = {"kills": args.kills, "target": args.target, "signal": args.signal, "seed": args.seed}
        found = {
            "database": "PostgreSQL" if args.url else "SQLite",
            "minutes": round(minutes, 1),
            "runs_ended": campaign.ended,
            "defects": sum(bool(kill.defects) for kill in kills),
        }
        write({**began, "arguments": given, **found, "kills": list(map(asdict, kills))}, args.out)
    return int(any(kill.defects for kill in kills))


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
