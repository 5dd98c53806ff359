"""Profile a network: list its modules, and their operators and kernels.

Operators and kernels have times, libraries and sources.

Examples:
  autotune profile --model torchvision:resnet50 --batch 32
  autotune profile --db network.db --html page.html
"""

from __future__ import annotations

import argparse

from autotune_cli.command_line import (
    DEFAULT_MODEL,
    add_batch,
    add_device,
    add_dtype,
    add_model,
    add_precision,
    output,
    positive,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    network = parser.add_argument_group("network")
    add_model(network, DEFAULT_MODEL)
    add_batch(network)
    add_dtype(network)
    network.add_argument("--channels-last", action="store_true", help="weights and input channels-last in memory")
    run = parser.add_argument_group("run")
    add_device(run)
    run.add_argument("--cudnn", choices=["on", "off"], help="whether torch may use cuDNN (default on)")
    run.add_argument("--compile", action="store_true", help="profile the network through torch.compile")
    run.add_argument("--db", metavar="FILE", help="also profile FusedResNet on this database, side by side")
    add_precision(run)
    run.add_argument("--calls", type=positive, default=4, metavar="N", help="calls to average over (default 4)")
    run.add_argument(
        "--from", dest="from_traces", nargs="+", metavar="FILE", help="show these traces of --trace; run nothing"
    )
    shown = parser.add_argument_group("results")
    shown.add_argument("--layer", metavar="PATTERN", help="only modules whose path matches, such as 'layer1.*'")
    shown.add_argument("--depth", type=positive, metavar="N", help="levels of modules to show (default: all)")
    shown.add_argument("--json", type=output, metavar="FILE", help="write the whole profile as JSON")
    shown.add_argument("--html", type=output, metavar="FILE", help="write the profile as a self-contained HTML page")
    shown.add_argument("--trace", type=output, metavar="FILE", help="write the trace, for Perfetto; .gz compresses it")
