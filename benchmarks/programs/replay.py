"""Compare samplers on a recorded tuning run, in simulated time.

This needs neither a GPU nor a compiler. "rate" rates the cost models that rank
the configs before anything is measured: by the rank correlation of cost and
time, and by the regret, which is the time of the best of a few candidates over
that of the best of all, minus 1.

Examples:
  python benchmarks/programs/replay.py record tuning_db/all.db recording.json.gz
  python benchmarks/programs/replay.py compare recording.json.gz --seeds 20
  python benchmarks/programs/replay.py rate recording.json.gz --candidates 16
  python benchmarks/programs/replay.py cluster recording.json.gz --out cluster.json
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import cluster_simulation
import cost_model_rating
import kernel_tuner_search
import torch
from rich.console import Console
from rich.table import Table

from autotune.core import AutotuneError, format_bytes, require_one_of
from autotune.search import ANY_SAMPLER, SAMPLERS, TuneTrace, trace_of
from autotune.tuner import MIN_CONFIGS, Replay, replay
from autotune_cli.command_line import output, percent, positive, seconds
from autotune_cli.main import run_program
from autotune_cli.record import provenance
from tuning_db import Store

DEFAULT_SAMPLERS = ("transfer", "tpe", "cost-model", "random")
"""Samplers that are compared. Of the others, gp takes minutes, cmaes needs a package, and brute-force goes through the
order of cost-model."""
SHARES = (0.02, 0.05, 0.10, 0.15)
"""Shares of a layer's configs after which the table shows the best time."""
NEAR_BEST = 0.02
"""A layer counts as solved when its time is at most this much above the best, relative to the best."""
MOMENTS = (10.0, 20.0, 30.0, 60.0, 120.0, 180.0)
"""Simulated seconds after which the table shows the sum of the best times."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="command", required=True, metavar="record|merge|compare|rate|cluster")
    making = commands.add_parser("record", help="write the trials of a database to a recording")
    making.add_argument("database", type=Path, metavar="DB", help="preferably of autotune tune --sampler brute-force")
    making.add_argument("recording", type=Path, metavar="FILE", help="the file to write, gzipped JSON")
    making.add_argument("--device", help="name of the device, if the database has trials of several")
    merging = commands.add_parser("merge", help="write the configs of two recordings of one device to a third")
    merging.add_argument(
        "recordings", type=Path, nargs=2, metavar="FILE", help="a config of both counts as in the first"
    )
    merging.add_argument("recording", type=Path, metavar="MERGED", help="the file to write")
    searching = commands.add_parser("compare", help="search a recording with each sampler and compare the results")
    searching.add_argument("recording", type=Path, metavar="FILE", help="what `record` wrote")
    searching.add_argument(
        "--sampler",
        action="append",
        metavar=f"{{{','.join(SAMPLERS)}}}|{ANY_SAMPLER}|{kernel_tuner_search.PREFIX}STRATEGY",
        help=f"search with this sampler, or with a strategy of Kernel Tuner, such as {kernel_tuner_search.PREFIX}pso, "
        f"whose time is not simulated; may be repeated (default {', '.join(DEFAULT_SAMPLERS)})",
    )
    searching.add_argument("--seeds", type=positive, metavar="N", default=20, help="searches per sampler (default 20)")
    searching.add_argument("--cores", type=positive, metavar="N", default=16, help="cores that compile (default 16)")
    searching.add_argument(
        "--share",
        type=percent,
        metavar="PERCENT",
        default=0.15,
        help="share of a layer's configs that may be tried (default 15%%)",
    )
    searching.add_argument(
        "--gain", type=percent, metavar="PERCENT", default=0.01, help="as for autotune tune (default 1%%)"
    )
    searching.add_argument(
        "--budget", type=seconds, metavar="TIME", default=1e9, help="simulated time (default unlimited)"
    )
    searching.add_argument("--only", action="append", metavar="FAMILY", help="only this family; may be repeated")
    searching.add_argument("--chart", type=Path, metavar="PNG", help="draw the curves to a file")
    rating = commands.add_parser("rate", help="rate the cost models of the families by a recording")
    rating.add_argument("recording", type=Path, metavar="FILE", help="what `record` wrote")
    rating.add_argument(
        "--candidates", type=positive, default=16, metavar="N", help="configs of a layer that are tried (default 16)"
    )
    scaling = commands.add_parser("cluster", help="search a recording on clusters of different sizes")
    scaling.add_argument("recording", type=Path, metavar="FILE", help="what `record` wrote")
    scaling.add_argument("--seeds", type=positive, metavar="N", default=5, help="searches per cluster (default 5)")
    scaling.add_argument("--name", default="", help="name of the network, for the chart's title")
    scaling.add_argument("--out", type=output, metavar="JSON", help="write all times, and draw a chart beside the file")


def record(args: argparse.Namespace, console: Console) -> None:
    """Write the recording of a database."""
    with Store.open(args.database) as store:
        names = [device.name for device in store.devices()]
        if len(names) != 1 and not args.device:
            raise AutotuneError(f"{args.database} has trials of {names or 'no device'}: name one with --device")
        device = store.device(require_one_of("device", args.device or names[0], names))
        assert device
        trace = trace_of(store, device)
    if not trace.spaces:
        raise AutotuneError(f"{args.database} has no trials of kernels: a packed database keeps only the finals")
    _save(trace, args.recording, console)


def merge(args: argparse.Namespace, console: Console) -> None:
    """Write the configs of two recordings to a third."""
    first, second = map(TuneTrace.load, args.recordings)
    _save(first.merged(second), args.recording, console)


def _save(trace: TuneTrace, path: Path, console: Console) -> None:
    """Write a recording, and print what it holds."""
    trace.save(path)
    trials = sum(len(result.launches) for traced in trace.spaces for result in traced.results)
    configs = sum(len(traced.results) for traced in trace.spaces)
    size = format_bytes(path.stat().st_size)
    console.print(f"{path}: {len(trace.spaces)} spaces, {configs} configs, {trials} trials, {size}")


def mean(values: Sequence[float]) -> str:
    """Return a mean as a percentage, or "-" while some problem has no result."""
    average = statistics.fmean(values)
    return "-" if average == float("inf") else f"{average:.1%}"


def table_by_share(runs: dict[str, list[Replay]]) -> Table:
    """Return how far a layer's best time is above its optimum after shares of its configs."""
    table = Table(
        title="best time of a layer so far, above its optimum", title_justify="left", box=None, header_style="bold"
    )
    table.add_column("sampler")
    for share in SHARES:
        table.add_column(f"{share:.0%}\ntried", justify="right")
    table.add_column(f"within\n{NEAR_BEST:.0%}", justify="right")
    table.add_column("worst\nlayer", justify="right")
    table.add_column("tried\nin all", justify="right")
    for name, replays in runs.items():
        ends = [one.excess_after(problem, SHARES[-1]) for one in replays for problem in one.best_us]
        shown = [mean([one.excess_after(p, share) for one in replays for p in one.best_us]) for share in SHARES]
        near_best = sum(end <= NEAR_BEST for end in ends) / len(ends)
        tried = statistics.fmean(one.tried for one in replays)
        table.add_row(name, *shown, f"{near_best:.1%}", f"{max(ends):.1%}", f"{tried:.1%}")
    return table


def table_by_time(runs: dict[str, list[Replay]], cores: int) -> Table:
    """Return how far the sum of the layers' best times is above its optimum at some simulated times."""
    table = Table(
        title=f"sum of the best times so far, above its optimum, {cores} cores",
        title_justify="left",
        box=None,
        header_style="bold",
    )
    table.add_column("sampler")
    for moment in MOMENTS:
        table.add_column(f"{moment:.0f} s", justify="right")
    table.add_column("ends after", justify="right")
    table.add_column("asking,\ntelling", justify="right")
    for name, replays in runs.items():
        shown = [mean([one.excess_at(moment) for one in replays]) for moment in MOMENTS]
        ends = statistics.fmean(one.seconds for one in replays)
        searching = statistics.fmean(one.search_seconds for one in replays)
        table.add_row(name, *shown, f"{ends:.0f} s", f"{searching:.1f} s")
    return table


def _searches(trace: TuneTrace, name: str, args: argparse.Namespace) -> list[Replay]:
    """Return a search of each seed, by a sampler or by a strategy of Kernel Tuner."""
    if name.startswith(kernel_tuner_search.PREFIX):
        strategy = name.removeprefix(kernel_tuner_search.PREFIX)
        return [kernel_tuner_search.search(trace, strategy, seed, args.share) for seed in range(args.seeds)]
    return [replay(trace, name, seed, args.cores, args.share, args.gain, args.budget) for seed in range(args.seeds)]


def compare(args: argparse.Namespace, console: Console) -> None:
    """Search a recording with each sampler and print the results."""
    trace = TuneTrace.load(args.recording).of_families(args.only or [])
    runs = {name: _searches(trace, name, args) for name in args.sampler or DEFAULT_SAMPLERS}
    configs = sum(len(traced.results) for traced in trace.spaces)
    console.print(f"{configs} configs of {len(trace.best_us())} problems on {trace.device}", highlight=False)
    console.print(
        f"{args.seeds} seeds; at most {args.share:.0%} of a layer's configs, but no fewer than {MIN_CONFIGS}",
        highlight=False,
    )
    console.print(table_by_share(runs))
    timed = {name: run for name, run in runs.items() if run[0].is_timed}
    if timed:
        console.print(table_by_time(timed, args.cores))
    if args.chart:
        from search_chart import draw

        draw(runs, f"Samplers on {trace.device}, {args.seeds} seeds", args.chart)
        console.print(f"chart {args.chart}")


def rate(args: argparse.Namespace, console: Console) -> None:
    """Print how well the cost models rank the configs of a recording."""
    trace = TuneTrace.load(args.recording)
    configs = sum(len(traced.results) for traced in trace.spaces)
    title = f"{args.candidates} candidates a layer; {configs} configs on {trace.device}"
    for table in cost_model_rating.tables(cost_model_rating.rate(trace, args.candidates), title):
        console.print(table)


def cluster(args: argparse.Namespace, console: Console) -> None:
    """Print how long a search takes on clusters of different sizes."""
    trace = TuneTrace.load(args.recording)
    times = cluster_simulation.simulate(trace, args.seeds, share=1.0, gain=0.01)
    name = f"{args.name or args.recording.name}, {trace.device}"
    near = f"{cluster_simulation.NEAR_BEST:.0%}"
    title = f"{name}: seconds until the layers' best times are within {near} of their optimum"
    console.print(cluster_simulation.table(times, title))
    least = cluster_simulation.least_seconds(trace)
    console.print(f"at least {least:.1f} s: the kernel near its best that the slowest layer has first", highlight=False)
    if args.out:
        made_by = {"command": "replay cluster", "seeds": args.seeds, **provenance(torch.device("cpu"))}
        cluster_simulation.save(times, trace, made_by, args.out)
        cluster_simulation.draw(times, f"Searches on a cluster: {name}", args.out.with_suffix(".png"))
        console.print(f"wrote {args.out} and {args.out.with_suffix('.png')}")


COMMANDS = {"record": record, "merge": merge, "compare": compare, "rate": rate, "cluster": cluster}


def main(args: argparse.Namespace) -> None:
    COMMANDS[args.command](args, Console())


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
