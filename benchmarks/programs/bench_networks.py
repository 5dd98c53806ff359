"""Compare FusedResNet with torch.compile on a list of networks.

Each network is tuned in a process of its own, unless --db names a database that
has their plans. A process for each batch size then times FusedResNet on the
database and with nothing tuned, and torch.compile in its modes reduce-overhead
and max-autotune with freezing, all in interleaved rounds. On a GPU the
processes first compile, all at the same time; kernels are timed in turns.
Several GPUs take one network after the other, each with its share of the cores.
What Inductor compiled and timed stays in the folder of --dbs, so max-autotune,
which takes minutes, goes on where an interrupted run ended. A process that
compiles in this mode keeps one core busy, so --compile-ahead first lets several
of them fill Inductor's caches. The results are a table, a chart, and a JSON
record. A network that the record of this commit holds is measured again only if
--only names it.

Example:
  python benchmarks/programs/bench_networks.py --budget 3m --dbs generated/networks
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import networks_chart
import torch
from bench_process import BenchProcess, read, run
from rich.console import Console
from rich.table import Table
from speedups import PEERS, Row, mean, rows

from autotune.core import AutotuneError, number, require_one_of
from autotune_cli.command_line import (
    add_device,
    add_record,
    add_show,
    gpu_numbers,
    names,
    positive,
    require_gpus,
    sizes,
    torch_device,
)
from autotune_cli.commands.bench import entry as database_entry
from autotune_cli.main import run_program
from autotune_cli.record import provenance, slug, write

UNET = "unet"
NETWORKS = {
    name: name if name == UNET else f"torchvision:{name}"
    for name in (
        *("mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "efficientnet_b3", "regnet_y_400mf"),
        *("regnet_x_3_2gf", "densenet121", "googlenet", "inception_v3", "shufflenet_v2_x1_0", "convnext_tiny"),
        *("vgg16_bn", "fcn_resnet50", UNET),
    )
}
"""Name in the table -> value of --model."""

VARIANTS = ("eager", "compile_frozen", "compile_max", "untuned", "fused")
COMPILED = ("compile_frozen", "compile_max", "untuned")
"""Those of VARIANTS whose code comes from Inductor alone."""
METHOD = (
    "each network: `autotune tune` and `autotune bench` in processes of their own; speedup: time of the faster of "
    "torch.compile's modes, both with freezing, over that of FusedResNet, back-to-back calls, medians over "
    "rounds of one run"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", type=names, default=[], metavar="A,B", help="only these networks, even if recorded")
    parser.add_argument("--batch", type=sizes, default="1,32,128", metavar="N[,N]", help="default %(default)s")
    parser.add_argument("--budget", default="3m", metavar="TIME", help="time to tune a network (default 3m)")
    parser.add_argument(
        "--dbs",
        type=Path,
        default=Path("generated/networks"),
        metavar="DIR",
        help="folder of the databases, of Inductor's caches, and of what tune and bench print (default %(default)s)",
    )
    parser.add_argument("--input", metavar="C,H,W", help="size of an image, instead of each network's usual size")
    parser.add_argument("--db", type=Path, metavar="FILE", help="measure with this database, and tune nothing")
    parser.add_argument("--seconds", default="2", metavar="TIME", help="time of each variant (default 2)")
    parser.add_argument(
        "--skip", type=names, default=[], metavar="A,B", help=f"leave out some of {', '.join(VARIANTS[:-1])}"
    )
    parser.add_argument(
        "--compile-ahead",
        type=positive,
        metavar="N",
        help="before anything is measured, let Inductor compile all networks, in N processes a GPU at a time",
    )
    add_device(parser)
    parser.add_argument(
        "--devices", type=gpu_numbers, metavar="N,...", help="the GPUs that share the networks (default 0)"
    )
    add_record(parser, "networks-DEVICE")
    add_show(parser)


def main(arguments: argparse.Namespace) -> int:
    if arguments.show:
        finish(read(arguments.show), arguments.show)
        return 0
    for name in arguments.only:
        require_one_of("network", name, list(NETWORKS))
    for name in arguments.skip:
        require_one_of("variant", name, list(VARIANTS[:-1]))
    device = torch_device(arguments.device)
    about = provenance(device, arguments.out)
    path = arguments.out or Path(f"networks-{slug(about['machine']['device'])}.json")
    old = read(path) if path.is_file() else {}
    known = old["networks"] if old.get("commit") == about["commit"] else {}  # a record is of one commit
    how = {"database": database_entry(arguments.db)} if arguments.db else {"budget": arguments.budget}
    record: dict[str, Any] = {**about, "method": METHOD, **how, "networks": known}
    wanted = arguments.only or [name for name in NETWORKS if name not in known]
    available = places(arguments.devices, device.type)
    if arguments.compile_ahead:
        compile_ahead(wanted, arguments, device.type, available)
    for_each(
        wanted,
        available,
        lambda name, place: measure(name, arguments, device.type, place),
        lambda name, entry: keep(record, name, entry, path),
    )
    finish(record, path)
    return int(any("reason" in entry for entry in record["networks"].values()))


def keep(record: dict[str, Any], name: str, entry: Mapping[str, Any], path: Path) -> None:
    """Write a record with the entry of a network: an interrupted run keeps what it measured."""
    record["networks"][name] = entry
    write(record, path)


def compile_ahead(
    wanted: Sequence[str], arguments: argparse.Namespace, device: str, places: Sequence[Mapping[str, str]]
) -> None:
    """Let Inductor compile networks for all batch sizes, so that its caches hold them.

    A failure is not reported here: it happens again when the network is measured.

    Args:
        wanted: The networks.
        arguments: The arguments of the command.
        device: "cpu" or "cuda".
        places: As in `for_each`; each takes arguments.compile_ahead processes at a time.
    """
    jobs = [(name, batch) for batch in arguments.batch for name in wanted]
    variants = [one for one in _variants(arguments) if one in COMPILED]
    free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
    for place in places * arguments.compile_ahead:
        free.put(place)

    def compile_one(job: tuple[str, int]) -> None:
        name, batch = job
        place = free.get()
        options = _options(name, arguments, device, variants, seconds="0")
        bench = BenchProcess(batch, reports_of(name, arguments), arguments.db, options, place)
        try:
            bench.start(compilers=1)
            bench.batches()
        except AutotuneError:
            pass
        finally:
            bench.stop()
            free.put(place)

    with ThreadPoolExecutor(len(places) * arguments.compile_ahead) as threads:
        try:
            for number, _ in enumerate(threads.map(compile_one, jobs), 1):
                print(f"compiled {number} of {len(jobs)}", file=sys.stderr)
        except KeyboardInterrupt:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def for_each(
    wanted: Sequence[str],
    places: Sequence[Mapping[str, str]],
    measured: Callable[[str, Mapping[str, str]], dict[str, Any]],
    keep: Callable[[str, dict[str, Any]], None],
) -> None:
    """Measure networks, each at the next place that is free, with that place's share of the cores.

    Args:
        wanted: The networks.
        places: The environment variables of each place.
        measured: (network, place) -> its entry.
        keep: Takes a network and its entry, one at a time; none of those that an interruption ended.
    """
    cores = sorted(os.sched_getaffinity(0))
    waiting, lock, interrupted = iter(enumerate(wanted, 1)), threading.Lock(), threading.Event()

    def work(at: int) -> None:
        share = cores[len(cores) * at // len(places) : len(cores) * (at + 1) // len(places)] or cores
        os.sched_setaffinity(0, share)  # of this thread, and of the processes that it starts
        while True:
            with lock:
                number, name = next(waiting, (0, ""))
            if not name:
                return
            print(f"{name} ({number} of {len(wanted)})", file=sys.stderr)
            entry = measured(name, places[at])
            if interrupted.is_set():
                return
            with lock:
                keep(name, entry)

    with ThreadPoolExecutor(len(places)) as threads:
        try:
            list(threads.map(work, range(len(places))))
        except KeyboardInterrupt:
            interrupted.set()
            raise


def places(numbers: Sequence[int] | None, device: str) -> list[dict[str, str]]:
    """Return the environment variables of the processes of each GPU; one place without any if no GPU was chosen.

    Raises:
        AutotuneError: A GPU does not exist.
    """
    if not numbers:
        return [{}]
    count = torch.cuda.device_count() if device == "cuda" else 0
    require_gpus(numbers, count)
    visible = names(os.environ.get("CUDA_VISIBLE_DEVICES", "")) or [str(number) for number in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": visible[number]} for number in numbers]


def measure(name: str, arguments: argparse.Namespace, device: str, place: Mapping[str, str]) -> dict[str, Any]:
    """Tune and time a network; returns its entry in the record, with a "reason" if that failed.

    Args:
        name: A key of NETWORKS.
        arguments: The arguments of the command.
        device: "cpu" or "cuda".
        place: Environment variables of the processes.
    """
    reports = reports_of(name, arguments)
    batches = ["--batch", ",".join(map(str, arguments.batch))]
    entry: dict[str, Any] = {}
    options = _options(name, arguments, device, _variants(arguments), arguments.seconds)
    benches = [BenchProcess(batch, reports, arguments.db, options, place) for batch in arguments.batch]
    try:
        if device == "cuda":
            for bench in benches:
                bench.start(compilers=max(1, len(os.sched_getaffinity(0)) // len(benches)))
            for bench in benches:
                bench.wait_until_prepared()
        if not arguments.db:
            started = time.monotonic()
            arch = "cpu" if device == "cpu" else "auto"
            where = ("--db", f"{reports}.db", "--budget", arguments.budget)
            tune = ("tune", *_model(name, arguments), *batches, "--arch", arch, *where)
            run(*tune, report=reports.with_suffix(".tune.txt"), place=place)
            entry["tune_seconds"] = round(time.monotonic() - started, 1)
        entry["batches"] = [record for bench in benches for record in bench.batches()]
    except AutotuneError as problem:
        return entry | {"reason": str(problem)}
    finally:
        for bench in benches:
            bench.stop()
    return entry


def reports_of(name: str, arguments: argparse.Namespace) -> Path:
    """Return the beginning of the paths of a network's database, caches and reports, in a folder that exists."""
    arguments.dbs.mkdir(parents=True, exist_ok=True)
    return Path(arguments.dbs / name)


def _variants(arguments: argparse.Namespace) -> list[str]:
    return [one for one in VARIANTS if one not in arguments.skip]


def _model(name: str, arguments: argparse.Namespace) -> list[str]:
    return ["--model", NETWORKS[name], *(["--input", arguments.input] if arguments.input else [])]


def _options(name: str, arguments: argparse.Namespace, device: str, variants: Sequence[str], seconds: str) -> list[str]:
    """Return the options of `autotune bench` for some variants of a network, each timed for some seconds."""
    only = ["--only", ",".join(variants), "--seconds", seconds]
    return [*_model(name, arguments), "--device", device, *only]


def finish(record: Mapping[str, Any], path: Path) -> None:
    """Print the table and the failures, and draw the chart beside the record."""
    found = rows(record)
    console = Console(highlight=False)
    console.print(_table(found))
    for name, entry in record["networks"].items():
        if "reason" in entry:
            console.print(f"[red]{name} failed:[/] ", end="")
            console.print(entry["reason"], markup=False)
        for batch in entry.get("batches", ()):
            for variant, one in batch["variants"].items():
                if one["status"] != "ok":
                    console.print(f"[red]{name}, batch {batch['batch']}, {variant}:[/] ", end="")
                    console.print(one["reason"], markup=False)
    if any(not math.isnan(row.speedup) for row in found):
        picture = path.with_suffix(".png")
        try:
            networks_chart.draw(found, record["machine"]["device"], picture)
        except ImportError:
            console.print("drawing needs matplotlib: install it, then give --show FILE.json")
        else:
            console.print(f"wrote {path} and {picture}")


def _table(found: Sequence[Row]) -> Table:
    title = "times faster than torch.compile"
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
    table.add_column("network", no_wrap=True)
    peers = [label.replace("-", "-\n") for label in PEERS.values()]
    for heading in ("N", "us", "tuned", "untuned", *peers, "error", "error\n/eager"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found:
        peers = [_number(row.peers.get(label, math.nan)) for label in PEERS.values()]
        table.add_row(
            row.network, str(row.batch), number(row.us), _number(row.speedup), _number(row.untuned), *peers,
            f"{row.error:.0e}", _number(row.error_ratio),
        )  # fmt: skip
    if found:
        means = [_number(mean(row.speedup for row in found)), _number(mean(row.untuned for row in found))]
        table.add_row("geometric mean", "", "", *means, style="bold")
    return table


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
