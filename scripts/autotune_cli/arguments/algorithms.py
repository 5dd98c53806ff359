"""List every algorithm of cuDNN for a convolution in its three passes.

The list has the numbered algorithms of the classic API and the plans of the
graph API, verified and timed, with workspace, determinism and arithmetic.

Examples:
  autotune algorithms --problem "conv2d n=32 h=56 w=56 c=64
         k=64 r=3 s=3 pad=1 dtype=f16"
  autotune algorithms --model torchvision:resnet50 --batch 32
         --layer layer1.0.conv1 --order workspace --chart pareto.png
  autotune algorithms --show record.json --order energy

docs/guide/cudnn-algorithms.md describes how to choose one of them for a layer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_cli.command_line import GPU_BATCH, MODEL, add_show, output, positive, shape, size

DIRECTIONS = ("forward", "backward-data", "backward-filter")
KINDS = ("classic", "engine")
ORDERS = ("time", "workspace", "energy")
"""Names of autotune.cudnn_algorithms."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options]\n       with one of --problem, --problems, --model and --show"
    source = parser.add_argument_group("convolutions (one of these)").add_mutually_exclusive_group(required=True)
    source.add_argument("--problem", metavar="TEXT", help="a convolution; its epilogue is ignored")
    source.add_argument("--problems", type=Path, metavar="FILE", help="a file with one problem a line")
    source.add_argument("--model", metavar="MODEL", help=MODEL)
    add_show(source)
    model = parser.add_argument_group("with --model")
    model.add_argument("--layer", metavar="PATTERN", help="names of its convolutions (default: all)")
    model.add_argument("--batch", type=positive, metavar="N", help=f"batch size (default {GPU_BATCH})")
    model.add_argument("--input", type=shape, metavar="C,H,W", help="shape of one sample, if it is not known")
    model.add_argument("--dtype", help="f16 (default), bf16, f32 or tf32")
    measured = parser.add_argument_group("measurement")
    measured.add_argument(
        "--pass",
        dest="passes",
        action="append",
        choices=DIRECTIONS,
        help=f"{', '.join(DIRECTIONS)}; may be repeated (default: all)",
        metavar="PASS",
    )
    measured.add_argument("--only", choices=KINDS, help="only the classic algorithms, or only engines of the graph API")
    measured.add_argument("--nchw", action="store_true", help="tensors in torch's contiguous format, not channels-last")
    measured.add_argument("--energy", action="store_true", help="also measure energy, as --order energy does")
    listed = parser.add_argument_group("results")
    listed.add_argument("--order", choices=ORDERS, default="time", help="order of the list (default: time)")
    listed.add_argument(
        "--workspace-limit", type=size, metavar="SIZE", help="list only up to this workspace, such as 64M"
    )
    listed.add_argument(
        "--deterministic", action="store_true", help="list only algorithms with the same bits in each call"
    )
    listed.add_argument("--top", type=positive, metavar="N", help="lines for each pass (default: all)")
    listed.add_argument("--out", type=output, metavar="FILE.json", help="the record (default: none)")
    listed.add_argument("--chart", type=output, metavar="FILE", help="draw time against workspace, or energy")
