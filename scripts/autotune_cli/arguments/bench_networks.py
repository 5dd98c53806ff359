"""Compare FusedResNet with torch.compile on a list of networks.

Each network is tuned in a process of its own. A process for each batch size
then times FusedResNet on the tuned database and with nothing tuned, and
torch.compile in its modes reduce-overhead and max-autotune with freezing, all
in interleaved rounds. On a GPU the processes first compile, all at the same
time; kernels are timed in turns. Several GPUs take one network after the other,
each with its share of the cores. What Inductor compiled and timed stays in the
folder of --dbs, so max-autotune, which takes minutes, goes on where an
interrupted run ended. A process that compiles in this mode keeps one core busy,
so --compile-ahead first lets several of them fill Inductor's caches. The
results are a table, a chart, and a JSON record. A network that the record holds
is measured again only if --only names it.

Example:
  autotune bench-networks --budget 3m --dbs generated/networks
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_cli.command_line import RECORDS, add_device, gpu_numbers, names, positive, sizes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", type=names, default=[], metavar="A,B", help="only these networks, even if recorded")
    parser.add_argument("--batch", type=sizes, default="1,32,128", metavar="N[,N]", help="default %(default)s")
    parser.add_argument("--budget", default="3m", metavar="TIME", help="time to tune a network (default 3m)")
    parser.add_argument(
        "--dbs",
        type=Path,
        default=Path("generated/networks"),
        metavar="DIR",
        help="folder of the databases, of Inductor's caches, and of what tune and bench print (default %(default)s)",
    )
    parser.add_argument("--input", metavar="C,H,W", help="size of an image, instead of each network's usual size")
    parser.add_argument("--no-tune", action="store_true", help="measure with the databases as they are")
    parser.add_argument("--seconds", default="2", metavar="TIME", help="time of each variant (default 2)")
    parser.add_argument("--skip-max-autotune", action="store_true", help="leave out max-autotune, which takes minutes")
    parser.add_argument(
        "--compile-ahead",
        type=positive,
        metavar="N",
        help="before anything is measured, let Inductor compile all networks, in N processes a GPU at a time",
    )
    add_device(parser)
    parser.add_argument(
        "--devices", type=gpu_numbers, metavar="N,...", help="the GPUs that share the networks (default 0)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE.json", help=f"the record (default networks-DEVICE.json in {RECORDS})"
    )
    parser.add_argument("--show", type=Path, metavar="FILE.json", help="only print and draw a record")
