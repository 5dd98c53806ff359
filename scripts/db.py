"""Look into a tuning database.

info  devices, tables, and how trials ended
best  each problem's winner
list  the candidates of each problem, the fastest first
pack  writes what FusedResNet needs, the best candidates and the plans, to --to
"""

from __future__ import annotations

import argparse
from pathlib import Path

from _cli import positive, run
from _tables import winners
from rich.console import Console
from rich.table import Table

from autotune.errors import AutotuneError
from autotune.families import families
from autotune.problem import parse
from autotune.report import brief, label, lines
from tuning_db import Store
from tuning_db.pack import pack
from tuning_db.schema import SCHEMA_VERSION


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("info", "best", "list", "pack"))
    parser.add_argument("file", type=Path, metavar="FILE", help="the database")
    parser.add_argument("--to", type=Path, metavar="FILE", help="pack: the new file")
    parser.add_argument(
        "--most", type=positive, metavar="N", default=10, help="list: candidates a problem (default 10)"
    )
    return parser.parse_args()


def info(store: Store, console: Console) -> None:
    console.print(f"{store.path}: schema {SCHEMA_VERSION}, {store.path.stat().st_size / 2**20:.1f} MiB")
    for device in store.devices():
        console.print(f"device: {device.name} ({device.target})", highlight=False)
        rates = f"{device.flops_per_us / 1e6:.1f} TFLOP/s, {device.bytes_per_us / 1e6:.2f} TB/s measured"
        console.print(f"        {rates}; {device.details}", highlight=False)
    table = Table(box=None, show_header=False)
    for name, count in store.counts().items():
        table.add_row(name, str(count))
    console.print(table)


def best(store: Store, console: Console) -> None:
    problems = []
    for row in store.problems():
        try:
            problems.append(parse(row.text))
        except AutotuneError as error:
            console.print(f"{row.text}\n  left out: {error}", highlight=False, markup=False)
    for device in store.devices():
        named = [(str(getattr(problem, "n", "")), problem) for problem in problems]
        console.print(winners(lines(store, device, named), device.name, "n"))
    if not store.devices():
        console.print("Nothing was timed yet: run scripts/tune.py with this file on the machine it is for.")


def listing(store: Store, console: Console, most: int) -> None:
    for device in store.devices():
        for row in store.problems():
            measurements = store.measurements(device, row.text)
            if not measurements:
                continue
            console.print(f"[bold]{_brief(row.text)}[/]  {row.text}", highlight=False)
            for measurement in measurements[:most]:
                time = f"{measurement.median_us:9.2f} us" if measurement.median_us else f"{measurement.status:>12}"
                mark = "final" if measurement.final else measurement.error or ""
                console.print(f"  {time}  {label(measurement)}  {mark}", highlight=False)


def _brief(text: str) -> str:
    """A problem in few characters; its operator alone, where it has a step that is not defined here."""
    try:
        return brief(parse(text))
    except AutotuneError:
        return text.split(maxsplit=1)[0]


def main() -> None:
    args = arguments()
    console = Console()
    if args.command == "pack":
        if not args.to:
            raise AutotuneError("pack needs a file to write: give --to FILE")
        pack(args.file, args.to)
        console.print(f"{args.to}: {args.to.stat().st_size / 2**20:.1f} MiB")
        return
    families()  # a problem may be one of a user's, named by AUTOTUNE_FAMILIES
    with Store.open(args.file) as store:
        if args.command == "info":
            info(store, console)
        elif args.command == "best":
            best(store, console)
        else:
            listing(store, console, args.most)


if __name__ == "__main__":
    run(main)
