"""Time the tune of a network that begins with another network's database.

A first network is tuned. Then a second one is tuned twice: from nothing, and
with the first one's database in a part of the time. Each run compiles into a
folder of its own. Both plans of the second network are then timed in
interleaved rounds. The table also shows how well each run kept its budget.

Example:
  autotune bench-transfer torchvision:resnet18 torchvision:resnet34
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_cli.command_line import MODEL, add_device, add_record, positive, seconds, shape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="FIRST", help=f"the network that is tuned before: {MODEL}")
    parser.add_argument("second", metavar="SECOND", help="the network that is tuned twice")
    parser.add_argument("--input", type=shape, metavar="C,H,W", help="shape of one sample, if not the usual ones")
    parser.add_argument("--batch", type=positive, default=8, metavar="N", help="batch size (default %(default)s)")
    parser.add_argument("--budget", type=seconds, default=120.0, metavar="TIME", help="time of a tune (default 2m)")
    parser.add_argument(
        "--share",
        type=float,
        default=0.5,
        metavar="X",
        help="part of the budget for the tune that begins with the first network's database (default %(default)s)",
    )
    parser.add_argument("--trials", type=positive, metavar="N", help="--trials of each tune (default: the tuner's own)")
    parser.add_argument("--seconds", type=seconds, default=3.0, metavar="TIME", help="time of each plan (default 3)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the databases and the tuner's output here")
    add_device(parser)
    add_record(parser, "transfer-SECOND-DEVICE")
