"""Write a report of a tuning database: one HTML page that needs no network access.

autotune report tuning_db/resnets_h200.db -o report.html

DB is a file, a server (postgresql+psycopg://user@host/name) or a URL
(https://host/model.db#sha256=DIGEST).
docs/guide/report.md describes the page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_cli.command_line import database, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("db", metavar="DB", type=database, help="the database to show")
    parser.add_argument("--against", metavar="DB2", type=database, help="a database to compare the times with")
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        type=output,
        default=Path("report.html"),
        help="the page (default report.html)",
    )
