"""Kills a tuner with SIGKILL at random moments and holds its database to what the tuner had said by then.

The tuner is the real one: it compiles kernels, verifies and times them in its worker. It says each trial on its
standard output as soon as that is recorded; the tests read the file with sqlite3 alone. Half of the moments are counted
from the start of the process, the others from its first trial. `autotune kill-campaign` kills in larger numbers.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from killed_run import TABLES, Database, Rows

FINAL = 11  # the column of a measurement that tells finals from trials
PROBLEMS = [
    "avg_pool2d n=1 h=8 w=8 c=24 r=3 s=3 stride=2,2 pad=1,1 dtype=f32 epilogue=none",
    "conv2d n=1 h=6 w=6 c=8 k=16 r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 dtype=f32 epilogue=relu",
    "conv2d n=1 h=5 w=5 c=16 k=16 r=1 s=1 stride=1,1 pad=0,0 dilation=1,1 groups=1 dtype=f32 epilogue=relu",
]


def tune(path: str, trials: int) -> None:
    """The tuner: says how many candidates it has recorded, each time that it has."""
    from autotune.core.device import architecture, cpu_targets
    from autotune.ir.problem import parse
    from autotune.measure.worker_client import Worker
    from autotune.tuner import Progress, Tuner, TunerOptions
    from tuning_db import Store

    class Witness(Progress):
        def measured(self, problem: str, candidates: int, best_us: float | None) -> None:
            os.write(1, f"{candidates}\n".encode())

    options = TunerOptions(architecture("cpu"), cpu_targets()[0], trials, jobs=2)
    with Store.create(path) as store, Worker("cpu") as worker:
        Tuner(store, map(parse, PROBLEMS), options, [worker], Witness()).run()


def tuner(path: Path, trials: int) -> subprocess.Popen[bytes]:
    """The tuner, as a process."""
    command = [sys.executable, __file__, "--tune", str(path), "--trials", str(trials)]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, env=environment)


@dataclass(frozen=True)
class Killed:
    """said: trials that it had said when it was killed, None if it had ended; recorded: trials in the file, in all."""

    said: int | None
    recorded: int


def kill(path: Path, rng: random.Random, longest: float, trials: int) -> Killed:
    """Run a tuner, kill it at a random moment, and check the file; raises AssertionError if anything is amiss."""
    before = Database(str(path)).rows()
    process = tuner(path, trials)
    assert process.stdout
    if rng.random() < 0.5:
        select.select([process.stdout], [], [], 600.0)  # its first trial
    try:
        process.wait(rng.uniform(0, longest))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    ended = process.wait() == 0
    said = sum(map(int, process.stdout.read().split()))
    process.stdout.close()
    assert ended or process.returncode == -signal.SIGKILL, f"it failed by itself: {process.returncode}"
    after = check(path)
    for table in TABLES:
        lost = before[table] - after[table]
        assert not lost, f"{table}: lost or changed {sorted(lost)[:3]}"
    new = len(trial_rows(after)) - len(trial_rows(before))
    assert new >= said, f"{said} trials were said and {new} recorded"
    return Killed(None if ended else said, len(trial_rows(after)))


def check(path: Path) -> Rows:
    """Every row of the file, which must be whole, without duplicates, and have binaries that are what they say."""
    database = Database(str(path))
    assert list(database.defects()) == []
    return database.rows()


def trial_rows(found: Rows) -> list[tuple[str, ...]]:
    """The measurements that are trials, not finals."""
    return [row for row in found["measurement"] if row[FINAL] == "0"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", required=True)
    parser.add_argument("--trials", type=int, required=True)
    args = parser.parse_args()
    tune(args.tune, args.trials)


if __name__ == "__main__":
    main()
