r"""Measure the accuracy of each precision: FusedResNet against torch in float32.

Without --model a ResNet-18 is trained on generated images, and the top-1 of
each precision and its agreement with float32 are reported. With --model the
outputs of that model, with random parameters, are compared on random images.
The results are a table and a JSON record.

Layers without kernels in the database run on torch's operators:
  autotune tune --model scripts/autotune_cli/synthetic_dataset.py:resnet18 \
         --input 3,64,64 --batch 250 --precision int8 --db accuracy.db
  autotune accuracy --db accuracy.db --save resnet18.pt
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_cli.command_line import add_device, add_model, add_record, percent, positive
from fused_resnet.precisions import DEFAULT_METHOD, FP8, INT8, METHODS, TF32

PRECISIONS = ("f32", TF32, "f16", "bf16", INT8, FP8)

CORRECTIONS = {"on": (True,), "off": (False,), "both": (False, True)}
"""Value of --bias-correction -> whether 8-bit formats are measured with it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", metavar="FILE", help="a tuning database (default: none, all on torch's operators)")
    parser.add_argument(
        "--precision", action="append", metavar="P", help=f"one of {', '.join(PRECISIONS)}; may be repeated"
    )
    add_device(parser)
    images = parser.add_argument_group("images")
    images.add_argument(
        "--images", type=positive, metavar="N", help="images to compare on (default 10000; with --model 1000)"
    )
    images.add_argument("--batch", type=positive, default=250, metavar="N", help="images per call (default 250)")
    images.add_argument(
        "--calibration",
        type=positive,
        default=512,
        metavar="N",
        help="images for the calibration of int8 and fp8 (default 512)",
    )
    images.add_argument(
        "--method",
        action="append",
        choices=list(METHODS),
        help="range of an activation in int8 and fp8; may be repeated; "
        + "; ".join(f"{name}: {meaning.replace('%', '%%')}" for name, meaning in METHODS.items())
        + f" (default {DEFAULT_METHOD})",
    )
    images.add_argument(
        "--max-loss",
        type=percent,
        metavar="PERCENT",
        help="in int8 and fp8, keep the most sensitive layers in the tensors' dtype, so that the error on the images "
        "of the calibration is at most this (default: no limit)",
    )
    images.add_argument(
        "--bias-correction",
        choices=list(CORRECTIONS),
        default="on",
        help="in int8 and fp8, remove the mean error of each output channel by the layer's bias; both: measure without "
        "and with it (default on)",
    )
    images.add_argument("--seed", type=int, default=0, metavar="N", help="seed of weights and images (default 0)")
    trained = parser.add_argument_group("a ResNet-18 that is trained on generated images")
    trained.add_argument("--steps", type=positive, default=3000, metavar="N", help="training steps (default 3000)")
    trained.add_argument("--train-batch", type=positive, default=256, metavar="N", help="images per step (default 256)")
    trained.add_argument(
        "--width", type=positive, default=64, metavar="N", help="channels of the first stage (default 64)"
    )
    trained.add_argument("--size", type=positive, default=64, metavar="N", help="height and width (default 64)")
    trained.add_argument(
        "--save", type=Path, metavar="FILE", help="file of the weights: read if it exists, else written after training"
    )
    add_model(parser.add_argument_group("or any model, on random images"), None, in_channels=False)
    add_record(parser.add_argument_group("results"), "accuracy-MODEL-DEVICE")
