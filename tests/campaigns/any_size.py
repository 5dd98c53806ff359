"""Run a model at random image sizes that were not tuned: right, and how fast?

The database is tuned for the sizes of --tuned, unless it has them. Then the
module is called at random sizes between the smallest and twice the largest of
them. Each result is compared with eager torch, and the first call is timed.
Of --compare of these sizes, a tune of that size alone, torch.compile with
dynamic=True and eager torch are timed in interleaved rounds with it. The exit
code is 1 if a result is less exact than eager's, or memory grows.

Example:
  python tests/campaigns/any_size.py --model torchvision:mobilenet_v2 --db sizes.db \\
         --tuned 224x224,320x320 --sizes 100 --compare 10 --budget 60s
"""

from __future__ import annotations

import argparse
import copy
import random
import tempfile
import time
import warnings
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fused_resnet
from autotune.core import AutotuneError
from autotune.core.device_turn import turn
from autotune.ir import DTYPES
from autotune.measure import synchronize
from autotune_cli import models, timing
from autotune_cli.baselines import TURN_SECONDS, Forward, flat
from autotune_cli.command_line import add_device, add_model, image_sizes, output, positive, seconds, torch_device
from autotune_cli.commands.bench import relative_error
from autotune_cli.main import run_program
from autotune_cli.record import provenance, write
from fused_resnet import FusedResNet

LESS_EXACT = 1.5
"""A result may have this many times eager's error against float32, or 1e-5 in float32."""
MORE_MEMORY = 2.0
"""The packed weights of all sizes may take this many times those of the first one: a layer may need two layouts."""
METHOD = (
    "first_ms: host time of the first call at a size, to the end of the device's work; us: bursts of back-to-back "
    "calls in interleaved rounds; tuned: a fresh database that was tuned for that size alone; dynamic: "
    "torch.compile(dynamic=True); over_other: time divided by that of the database of other sizes; error: "
    "norm(result - reference) / norm(reference), the reference in float32, for results in float32 in float64"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, None, in_channels=False)
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the database; it is made if absent")
    parser.add_argument(
        "--tuned", type=image_sizes, required=True, metavar="HxW[,HxW]", help="sizes that the database is tuned for"
    )
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="batch size (default 1)")
    models.add_dtype(parser)
    add_device(parser)
    parser.add_argument("--sizes", type=positive, default=20, metavar="N", help="random sizes (default 20)")
    parser.add_argument("--step", type=positive, default=32, metavar="N", help="sides are multiples of it (default 32)")
    parser.add_argument("--compare", type=int, default=0, metavar="N", help="sizes that are timed (default 0)")
    parser.add_argument("--budget", type=seconds, default=60.0, metavar="TIME", help="time of a tune (default 60s)")
    parser.add_argument("--seconds", type=seconds, default=1.0, metavar="TIME", help="time to time each (default 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the sizes (default 0)")
    parser.add_argument("--out", type=output, metavar="FILE.json", help="the record (default none)")


def main(args: argparse.Namespace) -> int:
    """Run the program; return its exit code."""
    if args.model is None:
        raise AutotuneError("--model is missing")
    device, rng = torch_device(args.device), random.Random(args.seed)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    dtype = args.dtype or models.default_dtype(device, None)
    channels = args.input[0] if args.input else 3
    model = models.load(args.model, (channels, *args.tuned[0]), None).module.to(device, DTYPES[dtype]).eval()
    about = provenance(device, args.out)
    sweep = Sweep(model, args, device, DTYPES[dtype], channels)
    sweep.tune(args.db, args.tuned)
    sides = sorted({side for size in args.tuned for side in size})
    multiples = range(-(-sides[0] // args.step), 2 * sides[-1] // args.step + 1)
    pairs = {(h * args.step, w * args.step) for h in multiples for w in multiples}
    others = sorted(pairs - set(args.tuned))  # each once: a second call at a size is no first one
    sizes = rng.sample(others, min(args.sizes, len(others)))
    with warnings.catch_warnings(), turn(device, TURN_SECONDS):
        warnings.simplefilter("ignore")
        rows, faults = sweep.run(sizes, rng)
    for fault in faults:
        print(fault)
    first = sorted(row["first_ms"] for row in rows)
    print(
        f"{len(rows)} sizes: first call {first[len(first) // 2]:.0f} ms in the median, {first[-1]:.0f} ms at most; "
        f"{len(faults)} faults"
    )
    if args.out:
        arguments = {key: value for key, value in vars(args).items() if key not in ("db", "out", "started")}
        write({**about, "arguments": arguments | {"dtype": dtype}, "method": METHOD, "rows": rows}, args.out)
        print(f"wrote {args.out}")
    return int(bool(faults))


class Sweep:
    """A model at many sizes.

    Args:
        model: The model, in eval mode on its device.
        args: The arguments.
        device: The device.
        dtype: Dtype of model and inputs.
        channels: Channels of the inputs.
    """

    def __init__(
        self, model: torch.nn.Module, args: argparse.Namespace, device: torch.device, dtype: torch.dtype, channels: int
    ) -> None:
        self._model, self._args, self._device, self._dtype = model, args, device, dtype
        self._channels = channels
        self._exact = torch.float64 if dtype is torch.float32 else torch.float32
        self._reference = copy.deepcopy(model).to(self._exact)

    def tune(self, path: Path, sizes: list[tuple[int, int]]) -> None:
        """Tune a database for sizes, as long as it needs that."""
        for size in sizes:
            fused_resnet.tune(self._model, self._input(size), path, budget=self._args.budget)

    def run(self, sizes: list[tuple[int, int]], rng: random.Random) -> tuple[list[dict[str, Any]], list[str]]:
        """Call the module at each size; return a row for each, and what is wrong."""
        network = FusedResNet.from_model(self._model, self._args.db, max_plans=len(sizes) + 1, compile=False)
        network(self._input(self._args.tuned[0]))
        compared = set(rng.sample(range(len(sizes)), min(self._args.compare, len(sizes))))
        dynamic = torch.compile(self._model, dynamic=True)
        rows, faults, constants = list[dict[str, Any]](), list[str](), list[int]()
        for number, size in enumerate(sizes):
            x = self._input(size)
            row, fault = self._row(network, x, size)
            if number in compared:
                row |= self._compare(network, dynamic, x, size)
            rows.append(row)
            faults += [fault] if fault else []
            constants.append(network.memory(x).constants)
            print(_line(row), flush=True)
        if constants[-1] > MORE_MEMORY * max(constants[0], 1):
            faults.append(f"packed weights grew from {constants[0]} to {constants[-1]} bytes")
        return rows, faults

    def _input(self, size: tuple[int, int]) -> Tensor:
        return torch.randn(self._args.batch, self._channels, *size, device=self._device, dtype=self._dtype)

    def _row(self, network: FusedResNet, x: Tensor, size: tuple[int, int]) -> tuple[dict[str, Any], str | None]:
        synchronize(self._device)
        started = time.perf_counter()
        y = network(x)
        synchronize(self._device)
        first = 1e3 * (time.perf_counter() - started)
        with torch.no_grad():
            expected = flat(self._reference(x.to(self._exact)))
            eager = relative_error(flat(self._model(x)), expected)
        error = relative_error(flat(y), expected)
        right = error <= max(LESS_EXACT * eager, 1e-5 if self._dtype is torch.float32 else 0.0)
        sources = {row.source for row in network.explain(x)}
        row = {"size": f"{size[0]}x{size[1]}", "first_ms": first, "error": error, "eager_error": eager}
        fault = None if right else f"{row['size']}: error {error:.1e}, eager's is {eager:.1e}"
        return row | {"sources": sorted(sources)}, fault

    def _compare(self, network: FusedResNet, dynamic: Forward, x: Tensor, size: tuple[int, int]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="any-size-") as folder, torch.no_grad():
            own = Path(folder) / "own.db"
            self.tune(own, [size])
            tuned = FusedResNet.from_model(self._model, own)
            calls: dict[str, Any] = {"other": network, "tuned": tuned, "dynamic": dynamic, "eager": self._model}
            runs: dict[str, Forward] = {name: partial(call, x) for name, call in calls.items()}
            for run in runs.values():
                timing.warm_up(run, self._device)
            samples = timing.interleave(runs, self._device, self._args.seconds)
        us = {name: asdict(timing.spread(one.stream)) for name, one in samples.items()}
        ratios = {
            name: asdict(timing.paired_ratio(samples[name].stream, samples["other"].stream))
            for name in samples
            if name != "other"
        }
        return {"us": us, "over_other": ratios}


def _line(row: dict[str, Any]) -> str:
    text = f"{row['size']:>10}  first {row['first_ms']:6.0f} ms  error {row['error']:.1e} ({row['eager_error']:.1e})"
    if "us" in row:
        ratios = ", ".join(f"{name} {row['over_other'][name]['median']:.2f}x" for name in row["over_other"])
        text += f"  {row['us']['other']['median']:.1f} us; of its time: {ratios}"
    return text


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
