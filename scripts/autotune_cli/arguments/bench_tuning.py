"""Time the tuner, and compare its winners with those of an exhaustive search.

The network is tuned twice from nothing, with different seeds, and a third time
with an empty database but the compiled kernels of the first run, in less time.
The winners of these runs and of the exhaustive search are then timed in
interleaved rounds. If the exhaustive search is a recording (autotune replay
record), the best configs of each of its problems are compiled and timed again.

Example:
  autotune tune --sampler brute-force --limit 150 --budget 1h --db all.db
  autotune bench-tuning --against all.db -- --batch 128 --budget 100s
  autotune bench-tuning -- --batch 128
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_cli.command_line import RECORDS, positive

RECORDING = Path("tests/data/search_h200.json.gz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against",
        type=Path,
        default=RECORDING,
        metavar="FILE",
        help=f"database or recording of an exhaustive search (default {RECORDING})",
    )
    parser.add_argument(
        "--built",
        default="15s",
        metavar="TIME",
        help="--budget of the run whose kernels are already compiled (default 15s)",
    )
    parser.add_argument("--rounds", type=positive, default=15, metavar="N", help="interleaved rounds (default 15)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the databases and the tuner's output here")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder of the record (default {RECORDS})")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of autotune tune, after --")
