"""Train SE-ResNet9-Fixup on generated images, by torch and on tuned kernels.

Torch trains it once for each seed, and torch.compile(backend="autotune") once
with the first seed. The results are the accuracies, the difference of the two
loss curves with the first seed beside that of torch's curves with two seeds, a
JSON record and a chart of the curves.

Tune the training step first:
  autotune tune --arch sm90 --batch 256 --train --db training.db
  autotune train --db training.db
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_cli.command_line import add_device, add_record, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", metavar="PATH", help="the tuning database of the training step")
    add_device(parser)
    parser.add_argument("--dtype", choices=["f16", "bf16", "f32"],
                        help="of the products, by torch.autocast (default f16 on a GPU, f32 on a CPU)")  # fmt: skip
    parser.add_argument("--steps", type=positive, default=1500, metavar="N", help="training steps (default 1500)")
    parser.add_argument("--batch", type=positive, default=256, metavar="N", help="images per step (default 256)")
    parser.add_argument(
        "--seeds", type=positive, default=3, metavar="N", help="trainings by torch, each with another seed (default 3)"
    )
    parser.add_argument(
        "--images", type=positive, default=4096, metavar="N", help="images for the accuracy (default 4096)"
    )
    results = parser.add_argument_group("results")
    add_record(results, "train-se_resnet9_fixup with device and dtype")
    results.add_argument("--plot", type=Path, metavar="FILE.json", help="only draw the chart of a record again")
