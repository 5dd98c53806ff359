"""Runs `autotune report`, whose options and description are in arguments/report.py."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape

from autotune.core import AutotuneError, format_bytes
from autotune.families import families
from autotune.report import collect, compare, render


def main(args: argparse.Namespace) -> None:
    families()  # registers the operators of $AUTOTUNE_FAMILIES
    with Console(stderr=True).status("reading the database") as status:

        def tell(problem: str) -> None:
            status.update(escape(problem))

        report = collect(args.db, tell)
        other = collect(args.against, tell) if args.against else None
    page = render(report, other.name, compare(report, other)) if other else render(report)
    try:
        args.out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise AutotuneError(f"cannot write {args.out}: {error.strerror}") from error
    print(f"{args.out}: {format_bytes(args.out.stat().st_size)}")
