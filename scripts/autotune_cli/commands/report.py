"""Runs `autotune report`, whose options and description are in arguments/report.py."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape

from autotune.core import AutotuneError, format_bytes
from autotune.families import families
from autotune_cli.reports.collect import collect
from autotune_cli.reports.comparison import compare
from autotune_cli.reports.page import render


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
