"""Time FusedResNet against other ways to run a network in torch.

The variants are eager torch, TorchScript, CUDA graphs and torch.compile. All
run in one process and are timed in interleaved rounds. The results are a table,
a JSON record and a bar chart.

Example:
  autotune bench --db tuning_db/se_resnet9_fixup_h200.db --batch 1,128
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_cli.command_line import (
    DEFAULT_MODEL,
    add_batches,
    add_device,
    add_dtype,
    add_model,
    add_precision,
    add_record,
    add_show,
    cpu_threads,
    names,
    seconds,
)

VARIANTS = (
    "eager",
    "channels_last",
    "jit",
    "jit_frozen+graph",
    "cuda_graph",
    "compile",
    "compile_frozen",
    "compile_max",
    "untuned",
    "fused_full",
    "fused",
)
"""Names of baselines.VARIANTS."""
STEPS = ("eager", "channels_last", "cuda_graph", "compile", "compile_reduce", "compile_max", "fused", "fused_direct")
"""Names of training_steps.STEPS."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    network = parser.add_argument_group("network")
    add_model(network, DEFAULT_MODEL)
    add_batches(network)
    add_dtype(network)
    add_precision(network)
    variants = parser.add_argument_group("variants")
    variants.add_argument("--db", metavar="FILE", help="the tuning database of the variant fused")
    variants.add_argument(
        "--against",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="also time FusedResNet on this database, such as an older one; may be repeated",
    )
    variants.add_argument(
        "--train", action="store_true", help="time a training step, forward and backward (docs/guide/training.md)"
    )
    variants.add_argument(
        "--amp", action="store_true", help="for --train: weights in float32, and torch.autocast to --dtype"
    )
    variants.add_argument(
        "--one-thread",
        action="store_true",
        help="for --train: all variants run the backward pass in the calling thread, by "
        "torch.autograd.set_multithreading_enabled(False), which saves time where the host is the limit",
    )
    variants.add_argument(
        "--only",
        type=names,
        default=[],
        metavar="A,B",
        help=f"run only these variants of {', '.join(VARIANTS)}; with --train of {', '.join(STEPS)}",
    )
    variants.add_argument("--skip", type=names, default=[], metavar="A,B", help="leave these variants out")
    variants.add_argument("--max-autotune", action="store_true", help="also run compile_max, which takes minutes")
    timing_group = parser.add_argument_group("timing")
    add_device(timing_group)
    timing_group.add_argument("--threads", type=cpu_threads, metavar="N", help="CPU threads (default: torch's choice)")
    timing_group.add_argument(
        "--pause",
        action="store_true",
        help="prepare the variants that read no database, then wait for a line on standard input: the database may be "
        "tuned meanwhile",
    )
    timing_group.add_argument(
        "--seconds", type=seconds, default=2.0, metavar="TIME", help="time for each variant and batch size (default 2)"
    )
    results = parser.add_argument_group("results")
    add_record(results, "MODEL-DEVICE-DTYPE")
    add_show(results, "only draw the chart of a record")
