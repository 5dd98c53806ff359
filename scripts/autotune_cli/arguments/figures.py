"""List, check and measure the figures that README and docs quote.

benchmarks/figures.toml names for each figure its network, its shipped database
and its record. Without an option the command lists the figures, with the plan
and the age of the record. --check needs no GPU and is part of make check.

Example:
  autotune figures --measure --only resnet50.f16
  autotune figures --update
"""

from __future__ import annotations

import argparse

from autotune_cli.command_line import names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    work = parser.add_mutually_exclusive_group()
    work.add_argument("--check", action="store_true", help="find figures without a clean record or a shipped plan")
    work.add_argument(
        "--measure", action="store_true", help="measure groups of figures on this machine's GPU and write their records"
    )
    work.add_argument("--update", action="store_true", help="write the numbers of the records into the pages")
    parser.add_argument(
        "--only", type=names, default=[], metavar="ID,...", help="list or measure only these groups or figures"
    )
