"""Compare search strategies on a recorded tune, in simulated time: no GPU and
no compiler is needed.

Examples:
  python scripts/replay.py record tuning_db/all.db recording.json.gz
  python scripts/replay.py compare recording.json.gz --seeds 20
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autotune.core import AutotuneError, format_bytes, require_one_of
from autotune.search import STRATEGIES
from autotune.search.simulator import FEW, Replay, replay
from autotune.search.trace import Recording, record
from autotune_cli.command_line import percent, positive, run, seconds
from tuning_db import Store

SHARES = (0.02, 0.05, 0.10, 0.15)
CLOSE = 0.02
MOMENTS = (10.0, 20.0, 30.0, 60.0, 120.0, 180.0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="record|compare")
    making = commands.add_parser("record", help="write what a database knows of its trials to a recording")
    making.add_argument("database", type=Path, metavar="DB", help="best of tune.py --strategy exhaustive")
    making.add_argument("recording", type=Path, metavar="FILE", help="the new file, gzipped JSON")
    making.add_argument("--device", help="whose trials, where several measured")
    searching = commands.add_parser("compare", help="search a recording by each strategy, and show their curves")
    searching.add_argument("recording", type=Path, metavar="FILE")
    searching.add_argument(
        "--strategy", action="append", choices=list(STRATEGIES), help="only this one; may be repeated (default all)"
    )
    searching.add_argument("--seeds", type=positive, metavar="N", default=20, help="searches of each (default 20)")
    searching.add_argument("--cores", type=positive, metavar="N", default=16, help="that compile (default 16)")
    searching.add_argument(
        "--share",
        type=percent,
        metavar="PERCENT",
        default=0.15,
        help="of a layer's configs that may be tried (default 15%%)",
    )
    searching.add_argument("--gain", type=percent, metavar="PERCENT", default=0.01, help="as for tune.py (default 1%%)")
    searching.add_argument("--budget", type=seconds, metavar="TIME", default=1e9, help="simulated time (default none)")
    searching.add_argument("--only", action="append", metavar="FAMILY", help="only its spaces; may be repeated")
    searching.add_argument("--chart", type=Path, metavar="PNG", help="draw the curves")
    return parser.parse_args()


def make(args: argparse.Namespace, console: Console) -> None:
    """Write a recording."""
    with Store.open(args.database) as store:
        names = [device.name for device in store.devices()]
        if len(names) != 1 and not args.device:
            raise AutotuneError(f"{args.database} has trials of {names or 'no device'}: name one with --device")
        device = store.device(require_one_of("device", args.device or names[0], names))
        assert device
        recording = record(store, device)
    if not recording.tracks:
        raise AutotuneError(f"{args.database} has no trials of kernels: a packed database keeps only the finals")
    recording.save(args.recording)
    trials = sum(len(result.launches) for track in recording.tracks for result in track.results)
    configs = sum(len(track.results) for track in recording.tracks)
    size = args.recording.stat().st_size
    console.print(
        f"{args.recording}: {len(recording.tracks)} spaces, {configs} configs, {trials} trials, {format_bytes(size)}"
    )


def mean(values: Sequence[float]) -> str:
    """A mean excess; "-" while some problem has not been tried at all."""
    average = statistics.fmean(values)
    return "-" if average == float("inf") else f"{average:.1%}"


def by_share(runs: dict[str, list[Replay]]) -> Table:
    """How far above its best a layer is after a share of its configs."""
    table = Table(
        title="the best found of a layer, above the best of all", title_justify="left", box=None, header_style="bold"
    )
    table.add_column("strategy")
    for share in SHARES:
        table.add_column(f"{share:.0%}\ntried", justify="right")
    table.add_column(f"within\n{CLOSE:.0%}", justify="right")
    table.add_column("worst\nlayer", justify="right")
    table.add_column("tried\nin all", justify="right")
    for name, replays in runs.items():
        ends = [one.excess_after(problem, SHARES[-1]) for one in replays for problem in one.best_us]
        shown = [mean([one.excess_after(p, share) for one in replays for p in one.best_us]) for share in SHARES]
        close = sum(end <= CLOSE for end in ends) / len(ends)
        tried = statistics.fmean(one.tried for one in replays)
        table.add_row(name, *shown, f"{close:.1%}", f"{max(ends):.1%}", f"{tried:.1%}")
    return table


def by_time(runs: dict[str, list[Replay]], cores: int) -> Table:
    """How far above the best sum of all layers is after a time."""
    table = Table(
        title=f"the sum over layers, above the best, on {cores} cores",
        title_justify="left",
        box=None,
        header_style="bold",
    )
    table.add_column("strategy")
    for moment in MOMENTS:
        table.add_column(f"{moment:.0f} s", justify="right")
    table.add_column("ends after", justify="right")
    for name, replays in runs.items():
        shown = [mean([one.excess_at(moment) for one in replays]) for moment in MOMENTS]
        table.add_row(name, *shown, f"{statistics.fmean(one.seconds for one in replays):.0f} s")
    return table


def compare(args: argparse.Namespace, console: Console) -> None:
    """Search by each strategy and print what came of it."""
    recording = Recording.load(args.recording).of(args.only or [])
    runs = {}
    for name in args.strategy or list(STRATEGIES):
        search: Callable[[int], Replay] = lambda seed, name=name: replay(  # type: ignore[misc]  # noqa: E731
            recording, name, seed, args.cores, args.share, args.gain, args.budget
        )
        runs[name] = [search(seed) for seed in range(args.seeds)]
    configs = sum(len(track.results) for track in recording.tracks)
    problems = len(recording.best_us())
    console.print(f"{configs} configs of {problems} problems on {recording.device}", highlight=False)
    console.print(f"{args.seeds} seeds; up to {args.share:.0%} of a layer's configs, at least {FEW}", highlight=False)
    console.print(by_share(runs))
    console.print(by_time(runs, args.cores))
    if args.chart:
        from autotune_cli.search_chart import draw

        draw(runs, f"Search strategies on {recording.device}, {args.seeds} seeds", args.chart)
        console.print(f"chart {args.chart}")


def main() -> None:
    args = arguments()
    console = Console()
    if args.command == "record":
        make(args, console)
    else:
        compare(args, console)


if __name__ == "__main__":
    run(main)
