"""Show the memory that the plans of a database need, without their GPU.

autotune memory tuning_db/resnets_h200.db
autotune memory MY.db --plan ResNet --batch 1,128

One line a plan: activations at the peak, workspaces, folded and packed
weights, kernels and results. The parameters of the model come on top.
In a program, `FusedResNet.memory(x)` reports them, too, for any size.
"""

from __future__ import annotations

import argparse

from autotune_cli.command_line import database, sizes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("db", metavar="DB", type=database, help="the database")
    parser.add_argument("--batch", type=sizes, action="extend", metavar="N[,N]", help="batch sizes (default all)")
    parser.add_argument("--plan", metavar="TEXT", default="", help="only plans whose name contains this text")
