"""Verify plans: run those of a database here; compare results and times.

autotune verify tuning_db/resnets_h200.db
autotune verify MY.db --model torchvision:resnet50 --batch 1,128

Each plan for this kind of device runs with random weights, or with --model as
that model, and is compared with float32, and with its recorded time. So an
upgrade of the driver, of PyTorch or of cuDNN shows what it changes. A kernel
that is wrong here is left out by later runs on this machine. One line a plan;
the exit code is 1 if a plan is wrong, and 3 if plans are only slower.
docs/guide/databases.md describes the verdicts.
"""

from __future__ import annotations

import argparse

from autotune_cli.command_line import add_device, add_model, database, positive, sizes

ROUNDS = 21
"""Samples of a plan's time: at most as many as a tune takes to compare two plans."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("db", metavar="DB", type=database, help="the database")
    add_device(parser)
    chosen = parser.add_argument_group("which plans")
    chosen.add_argument("--batch", type=sizes, action="extend", metavar="N[,N]", help="batch sizes (default all)")
    chosen.add_argument("--plan", metavar="TEXT", default="", help="only plans whose name contains this text")
    model = parser.add_argument_group("a model: for plans stored without their network, and in 8 bits")
    add_model(model, None, in_channels=False)
    model.add_argument(
        "--write", action="store_true", help="add the model's networks to the database, for checks without --model"
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--rounds", type=positive, metavar="N", default=ROUNDS, help="samples of a plan's time (default %(default)s)"
    )
    how.add_argument("--seed", type=int, default=0, metavar="N", help="seed of weights and inputs (default 0)")
