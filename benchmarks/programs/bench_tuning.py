"""Time the tuner, and compare its winners with those of an exhaustive search.

The network is tuned twice from nothing, with different seeds, and a third time
with an empty database but the compiled kernels of the first run, in less time.
The winners of these runs and of the exhaustive search are then timed in
interleaved rounds. If the exhaustive search is a recording (replay.py record),
the best configs of each of its problems are compiled and timed again.

Example:
  autotune tune --sampler brute-force --limit 150 --budget 1h --db all.db
  python benchmarks/programs/bench_tuning.py --against all.db -- --batch 128
  python benchmarks/programs/bench_tuning.py -- --batch 128
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from autotune.core import DeviceKind, device_arch, of_target
from autotune.ir import parse
from autotune.measure import Worker
from autotune.runtime import candidate
from autotune.search import Space, SpaceTrace, TuneTrace
from autotune.tuner import Progress, Tuner, TunerOptions
from autotune_cli.command_line import add_record, positive
from autotune_cli.main import run_program
from autotune_cli.record import provenance, slug, write
from autotune_cli.timed_tune import timed_tune
from tuning_db import Store
from tuning_db.schema import Measurement

BUILT = "libraries built"
RUNS = {"first": ("a", 0), "second": ("b", 1), BUILT: ("a", 2)}
"""Name -> (folder of binaries, seed)."""
DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
BEST = 4
"""Configs of each problem and family of a recording that are compiled and timed again."""


def tune(options: list[str], folder: Path, name: str) -> tuple[Path, float]:
    """Run the tuner in a new process; return its database and the seconds that it took."""
    binaries, seed = RUNS[name]
    database = folder / f"{name.replace(' ', '-')}.db"
    return database, timed_tune([*options, "--seed", str(seed), "--from-db", "none"], database, folder / binaries)


def time_best_configs(recording: TuneTrace, store: Store, worker: Worker) -> None:
    """Build and time the best configs of each space of a recording."""
    spaces = list(map(best_configs, recording.spaces))
    options = TunerOptions(
        arch=device_arch(of_target(recording.target), DeviceKind.of(torch.device(DEVICE))),
        target=recording.target,
        trials=0,
        jobs=len(os.sched_getaffinity(0)),
        sampler="brute-force",
        gain=0.0,
        vendor="none",
    )
    Tuner(store, (space.problem for space in spaces), options, [worker], Progress(), spaces).run()


def best_configs(traced: SpaceTrace) -> Space:
    """Return the BEST fastest configs of a recorded space."""
    space, times = traced.space, [result.best_us or math.inf for result in traced.results]
    order = sorted(range(len(times)), key=times.__getitem__)[:BEST]
    configs, costs = tuple(space.configs[i] for i in order), tuple(space.costs[i] for i in order)
    return Space(space.problem, space.family, configs, costs)


def exhaustive(against: Path, folder: Path) -> Path:
    """Return the database of the exhaustive search; for a recording, a new one with its best configs."""
    if not against.name.endswith(".json.gz"):
        Store.open(against).close()  # errors of the database come before the tuner runs
        return against
    recording, path = TuneTrace.load(against), folder / "exhaustive.db"
    with Store.create(path) as store, Worker(DEVICE) as worker:
        time_best_configs(recording, store, worker)
    return path


def best(store: Store, problem: str) -> Measurement | None:
    """Return the winner of a problem among our kernels and torch's operators, without cuDNN's plans."""
    [device] = store.devices()
    return next((row for row in store.ranking(device, problem) if row.kernel.family != "cudnn"), None)


def compare(databases: dict[str, Path], rounds: int) -> dict[str, dict[str, float]]:
    """Return problem -> run -> microseconds of its winner, timed in interleaved rounds."""
    times: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        stores = {name: stack.enter_context(Store.open(path)) for name, path in databases.items()}
        worker = stack.enter_context(Worker(DEVICE))
        problems = [row.text for row in next(iter(stores.values())).problems()]
        for problem in problems:
            rows = {name: row for name, store in stores.items() if (row := best(store, problem))}
            if len(rows) < len(stores):
                continue
            candidates = [candidate(stores[name], row.kernel, row.launch) for name, row in rows.items()]
            results = worker.finals(parse(problem), candidates, rounds)
            if all(result.median_us for result in results):
                times[problem] = {
                    name: result.median_us or math.nan for name, result in zip(rows, results, strict=True)
                }
    return times


RECORDING = Path("tests/data/search_h200.json.gz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against",
        type=Path,
        default=RECORDING,
        metavar="FILE",
        help=f"database or recording of an exhaustive search (default {RECORDING})",
    )
    parser.add_argument(
        "--built",
        default="15s",
        metavar="TIME",
        help="--budget of the run whose kernels are already compiled (default 15s)",
    )
    parser.add_argument("--rounds", type=positive, default=15, metavar="N", help="interleaved rounds (default 15)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the databases and the tuner's output here")
    add_record(parser, "tuning-DEVICE")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of autotune tune, after --")


def main(args: argparse.Namespace) -> int:
    options = [word for word in args.options if word != "--"]
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        databases = {"exhaustive": exhaustive(args.against, folder)}
        for name in RUNS:
            budget = ["--budget", args.built] if name == BUILT else []
            databases[name], seconds[name] = tune([*options, *budget], folder, name)
            print(f"{name}: tuned in {seconds[name]:.0f} s", file=sys.stderr)
        times = compare(databases, args.rounds)
    sums = {name: sum(of[name] for of in times.values()) for name in databases}
    table = Table("run", "s", "layers, us", "x exhaustive", "worst layer", title="tuning time, and the winners")
    for name in databases:
        worst = max(of[name] / of["exhaustive"] for of in times.values())
        took = f"{seconds[name]:.0f}" if name in seconds else ""
        table.add_row(name, took, f"{sums[name]:.1f}", f"{sums[name] / sums['exhaustive']:.3f}", f"{worst:.3f}")
    Console().print(table)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    record: dict[str, Any] = {
        **provenance(device, args.out),
        "options": options,
        "built": args.built,
        "seconds": seconds,
        "times_us": times,
    }
    path = args.out or Path(f"tuning-{slug(record['machine']['device'])}.json")
    write({**record, "sums_us": sums}, path)
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
