"""Write a report of a tuning database: one HTML page that needs no network access.

autotune report tuning_db/resnets_h200.db -o report.html

DB is a file, a server (postgresql+psycopg://user@host/name) or a URL
(https://host/model.db#sha256=DIGEST).
docs/guide/report.md describes the page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from autotune.core import AutotuneError, format_bytes
from autotune.families import families
from autotune_cli.command_line import database, output
from autotune_cli.reports.collect import collect
from autotune_cli.reports.comparison import compare
from autotune_cli.reports.page import render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("db", metavar="DB", type=database, help="the database to show")
    parser.add_argument("--against", metavar="DB2", type=database, help="a database to compare the times with")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=output,
        default=Path("report.html"),
        help="the page (default report.html)",
    )


def main(args: argparse.Namespace) -> None:
    families()  # registers the operators of $AUTOTUNE_FAMILIES
    with Console(stderr=True).status("reading the database") as status:

        def tell(problem: str) -> None:
            status.update(escape(problem))

        report = collect(args.db, tell)
        other = collect(args.against, tell) if args.against else None
    page = render(report, other.name, compare(report, other)) if other else render(report)
    try:
        args.output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise AutotuneError(f"cannot write {args.output}: {error.strerror}") from error
    print(f"{args.output}: {format_bytes(args.output.stat().st_size)}")
