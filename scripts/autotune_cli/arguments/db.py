"""Show, merge, sync, pack, export, compare and sign tuning databases.

DB is a file, or a server: postgresql+psycopg://user@host/name. Where a database
is only read, it may be a URL: https://host/model.db#sha256=DIGEST.
docs/guide/databases.md describes the databases.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_cli.command_line import at_least_0, database, positive, seconds
from tuning_db.trust.signature import TRUSTED

OBJECTIVES = ("time", "time-workspace", "energy")
"""Names of autotune.tuner.OBJECTIVES."""

SPARES = 3
"""Candidates that `pack` keeps of each problem: if another batch size refuses the first, the next one is used."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, about: str, *positional: str, many: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        for each in positional:
            sub.add_argument(each.lower(), metavar=each, type=Path if each == "FILE" else database)
        if many:
            sub.add_argument(many.lower(), metavar=many, nargs="+", type=database)
            sub.add_argument("-o", "--out", metavar="FILE", type=Path, required=True, help="the new file")
        return sub

    command("info", "show devices, software, tables, and the outcomes of trials", "DB")
    command("best", "show the winner of each problem", "DB")
    listed = command("list", "list the candidates of each problem, the fastest first", "DB")
    listed.add_argument("--most", type=positive, metavar="N", default=10, help="candidates of a problem (default 10)")
    packed = command("pack", "write a small new file with what plans, steps and finalists need", many="DBS")
    packed.add_argument(
        "--spares",
        type=at_least_0,
        metavar="N",
        default=SPARES,
        help="candidates kept of each problem, the best first; 0 keeps few (default %(default)s)",
    )
    packed.add_argument("--all", action="store_true", help="keep all trials and binaries")
    command("merge", "write a new file with the contents of several databases", many="DBS")
    synced = command("sync", "repeatedly add to each of two databases the rows of the other", "DB", "OTHER")
    synced.add_argument(
        "--every", type=seconds, metavar="TIME", default=30.0, help="time between two passes, such as 10s (default 30s)"
    )
    synced.add_argument("--once", action="store_true", help="end after one pass")
    command("diff", "count what only one of two databases has, and list differing winners", "DB", "OTHER")
    exported = command("export", "write the whole database as readable JSON", "DB", "FILE")
    exported.add_argument(
        "--optuna", action="store_true", help="write the trials as a storage of Optuna instead, for optuna-dashboard"
    )
    exported.add_argument(
        "--objective",
        action="append",
        choices=OBJECTIVES,
        help="with --optuna: a value of each trial (default time); may be repeated",
    )
    command("import", "add an exported file to a database, which is created if missing", "FILE", "DB")
    command("keygen", "write a new Ed25519 key to FILE, and its public half to FILE.pub", "FILE")
    sign_one = command("sign", "sign all data of a file that FusedResNet reads", "DB")
    sign_one.add_argument("--key", type=Path, required=True, metavar="FILE", help="the private key, in PEM form")
    verify_one = command("verify", "check all rows and binaries of a file, and its signature", "DB")
    verify_one.add_argument(
        "--key", action="append", default=[], help=f"a public key: a PEM file or base64 (default ${TRUSTED})"
    )
