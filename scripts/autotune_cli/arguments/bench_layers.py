"""Compare our tuned kernels with cuDNN and torch, layer by layer.

The peers are the best of all cuDNN plans, cuDNN's first choice, the database's
best CUTLASS 2.x kernel, and torch's operators. All candidates are verified,
captured into CUDA graphs and timed in interleaved rounds of one run. The
results are a table, a JSON record with every plan that was tried, and a chart.

Example:
  autotune tune --problems benchmarks/layers/resnet.txt --db layers.db
  autotune bench-layers --layers resnet --db layers.db
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_cli.command_line import add_record, add_show, output, positive
from autotune_cli.layers.known_sets import known_sets

LEAST_ROUNDS = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--layers", default="resnet", metavar="SET", help=f"{', '.join(known_sets())}, or a file of problems"
    )
    parser.add_argument(
        "--only", metavar="PATTERN", help="only layers whose title in the table or text matches this regular expression"
    )
    parser.add_argument("--db", type=Path, metavar="FILE", help="the tuning database with our kernels")
    parser.add_argument(
        "--rounds",
        type=rounds,
        default=40,
        metavar="N",
        help=f"rounds that are evaluated (default 40, at least {LEAST_ROUNDS})",
    )
    results = parser.add_argument_group("results")
    add_record(results, "layers-SET-GPU")
    results.add_argument("--chart", type=output, metavar="FILE", help="the chart (default: beside the record)")
    add_show(results)


def rounds(text: str) -> int:
    if positive(text) < LEAST_ROUNDS:
        raise argparse.ArgumentTypeError(
            f"'{text}' rounds are too few for a confidence interval: give at least {LEAST_ROUNDS}"
        )
    return int(text)
