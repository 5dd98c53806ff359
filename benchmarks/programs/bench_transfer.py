"""Time the tune of a network that begins with another network's database.

A first network is tuned. Then a second one is tuned twice: from nothing, and
with the first one's database in a part of the time. Each run compiles into a
folder of its own. Both plans of the second network are then timed in
interleaved rounds. The table also shows how well each run kept its budget.

Example:
  python benchmarks/programs/bench_transfer.py torchvision:resnet18 torchvision:resnet34
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from autotune.ir import DTYPES
from autotune_cli import models, timing
from autotune_cli.command_line import MODEL, add_device, add_record, positive, seconds, shape, torch_device
from autotune_cli.main import run_program
from autotune_cli.record import provenance, slug, write
from autotune_cli.timed_tune import timed_tune
from fused_resnet import FusedResNet

FIRST, NOTHING, TRANSFER = "first network", "second, from nothing", "second, from the first's database"


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


def main(arguments: argparse.Namespace) -> int:
    device = torch_device(arguments.device)
    model = models.load(arguments.second, arguments.input, None)
    budgets = {FIRST: arguments.budget, NOTHING: arguments.budget, TRANSFER: arguments.budget * arguments.share}
    took: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        databases = {name: folder / f"{i}.db" for i, name in enumerate(budgets)}
        for name, budget in budgets.items():
            text = arguments.first if name == FIRST else arguments.second
            options = ["--model", text, "--batch", str(arguments.batch), "--budget", f"{budget:g}s"]
            options += ["--arch", "cpu"] if device.type == "cpu" else []
            options += ["--input", ",".join(map(str, arguments.input))] if arguments.input else []
            options += ["--trials", str(arguments.trials)] if arguments.trials else []
            options += ["--from-db", str(databases[FIRST]) if name == TRANSFER else "none"]
            print(f"{name}: tuning {text} for {budget:g} s", file=sys.stderr)
            took[name] = timed_tune(options, databases[name], databases[name].with_suffix(".kernels").absolute())
        samples = _timed(model, databases, arguments.batch, device, arguments.seconds)
    _finish(arguments, model, device, budgets, took, samples)
    return 0


def _timed(
    model: models.Model, databases: Mapping[str, Path], batch: int, device: torch.device, seconds_each: float
) -> dict[str, timing.Samples]:
    """Time the second network's plans of both databases in interleaved rounds."""
    dtype = DTYPES["f32" if device.type == "cpu" else "f16"]
    module = model.module.to(device, dtype)
    x = torch.randn(batch, *model.shape).to(device, dtype)
    networks = {name: FusedResNet.from_model(module, databases[name]) for name in (NOTHING, TRANSFER)}
    with torch.inference_mode():
        calls = {name: lambda network=network: network(x) for name, network in networks.items()}
        for call in calls.values():
            timing.warm_up(call, device)
        return timing.interleave(calls, device, seconds_each)


def _finish(
    arguments: argparse.Namespace,
    model: models.Model,
    device: torch.device,
    budgets: Mapping[str, float],
    took: Mapping[str, float],
    samples: Mapping[str, timing.Samples],
) -> None:
    """Print the table and write the record."""
    spreads = {name: timing.spread(one.stream) for name, one in samples.items()}
    ratio = timing.paired_ratio(samples[NOTHING].stream, samples[TRANSFER].stream)
    table = Table("tune", "budget, s", "took, s", "network, us", title=f"{arguments.first}, then {arguments.second}")
    for name, budget in budgets.items():
        us = f"{spreads[name].median:.1f}" if name in spreads else ""
        table.add_row(name, f"{budget:g}", f"{took[name]:.1f}", us)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"speedup of the last plan over the one from nothing: {ratio.median:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"
    )
    record: dict[str, Any] = {
        **provenance(device, arguments.out),
        "arguments": {
            "first": arguments.first,
            "second": arguments.second,
            "batch": arguments.batch,
            "shape": model.shape,
        },
        "budget_seconds": budgets,
        "tune_seconds": took,
        "stream": {name: vars(one) for name, one in spreads.items()},
        "speedup": vars(ratio),
    }
    path = arguments.out or Path(f"transfer-{model.name}-{slug(record['machine']['device'])}.json")
    write(record, path)
    console.print(f"wrote {path}")


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
