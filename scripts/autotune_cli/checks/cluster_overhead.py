"""Time tunes on a Dask cluster of this machine against tunes without one.

A scheduler and two workers are started here: one with all compilers, and one
that measures. Then the same tune runs without and with the cluster, in turn,
with a new database and nothing compiled. Both try the same configs, those with
the lowest predicted costs. A short tune of each kind comes first: it imports
this project in the workers, which keep it, and reads all files from the disk.

Example:
  autotune cluster-overhead --model torchvision:resnet18
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from autotune.core import AutotuneError
from autotune_cli import record
from autotune_cli.command_line import add_jobs, output, positive
from tuning_db import Store

WARM_UP_TRIALS = 1
"""Configs of each layer in the tunes that come first."""
WORKER = "worker-"
"""Beginning of the names of the workers' folders."""
START_SECONDS = 60.0
"""Time limit for the scheduler and the workers to start."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="se_resnet9_fixup", help="the network (default se_resnet9_fixup)")
    parser.add_argument("--batch", type=positive, default=32, help="its batch size (default 32)")
    parser.add_argument("--trials", type=positive, default=12, help="configs of each layer (default 12)")
    parser.add_argument("--rounds", type=positive, default=2, help="tunes without and with the cluster (default 2)")
    parser.add_argument("--out", type=output, metavar="JSON", help="write the record to this file")
    add_jobs(parser)


def main(args: argparse.Namespace) -> None:
    console = Console(highlight=False)
    seconds: dict[str, list[float]] = {"alone": [], "cluster": []}
    trials: set[int] = set()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with _cluster(folder, args.jobs) as scheduler:
            options = {"alone": [], "cluster": ["--cluster", str(scheduler)]}
            for number in range(-1, args.rounds):
                for name, times in seconds.items():
                    tried = args.trials if number >= 0 else WARM_UP_TRIALS
                    spent, count = _tune(args, folder / f"{name}-{number}", tried, options[name])
                    _remove_compiled(folder)
                    if number >= 0:
                        times.append(round(spent, 2))
                        trials.add(count)
                        console.print(f"{name}: {spent:.1f} s, {count} trials")
    if len(trials) > 1:
        console.print(f"[red]the tunes made different numbers of trials: {sorted(trials)}")
    more = statistics.fmean(seconds["cluster"]) / statistics.fmean(seconds["alone"]) - 1
    console.print(f"on the cluster a tune takes {more:+.1%}")
    if args.out:
        chosen = {"model": args.model, "batch": args.batch, "trials_per_layer": args.trials, "jobs": args.jobs}
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        made = {**record.provenance(device), **chosen, "trials": sorted(trials), "seconds": seconds}
        args.out.write_text(json.dumps(made, indent=1) + "\n")
        console.print(f"wrote {args.out}")


def _tune(args: argparse.Namespace, folder: Path, trials: int, options: Sequence[str]) -> tuple[float, int]:
    """Run a tune; return its seconds and its number of trials; raises AutotuneError if it fails."""
    folder.mkdir()
    database = folder / "tune.db"
    words = ["--model", args.model, "--batch", str(args.batch), "--trials", str(trials), "--jobs", str(args.jobs)]
    words += ["--sampler", "cost-model", "--gain", "0%", "--vendor", "none", "--inductor", "off", "--from-db", "none"]
    started = time.perf_counter()
    command = [sys.executable, "-m", "autotune_cli", "tune", *words, "--budget", "30m", "--db", str(database), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=_environment(folder / "here"))
    if done.returncode:
        raise AutotuneError(f"autotune tune ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    spent = time.perf_counter() - started
    with Store.open(database) as store:
        return spent, store.counts()["measurement"]


@contextmanager
def _cluster(folder: Path, jobs: int) -> Iterator[Path]:
    """Start a scheduler and two workers, and yield the scheduler's file; the exit ends them."""
    from distributed import Client

    place = folder / "scheduler.json"
    options = ["--no-dashboard", "--scheduler-file", str(place)]
    workers = {f"compile={jobs}": jobs + 2, "measure=1": 4}
    commands = [["scheduler", "--port", "0", *options]]
    commands += [
        ["worker", *options, "--no-nanny", "--nthreads", str(threads), "--resources", resources]
        for resources, threads in workers.items()
    ]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"{len(processes)}.log").open("wb") as log:
                environment = _environment(folder / f"{WORKER}{len(processes)}")
                words = [sys.executable, "-m", "dask", *command]
                processes.append(subprocess.Popen(words, stdout=log, stderr=log, env=environment))
            until = time.monotonic() + START_SECONDS
            while not place.exists():
                if time.monotonic() > until:
                    raise AutotuneError("the scheduler of Dask does not start")
                time.sleep(0.05)
        with Client(scheduler_file=str(place)) as client:  # type: ignore[no-untyped-call]
            client.wait_for_workers(len(workers), timeout=START_SECONDS)
        yield place
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _remove_compiled(folder: Path) -> None:
    """Remove what the workers have compiled."""
    for place in folder.glob(f"{WORKER}*"):
        for compiled in place.iterdir():
            shutil.rmtree(compiled) if compiled.is_dir() else compiled.unlink()


def _environment(generated: Path) -> dict[str, str]:
    return {**os.environ, "AUTOTUNE_GENERATED": str(generated)}
