"""Train SE-ResNet9-Fixup on generated images, by torch and on tuned kernels.

Torch trains it once for each seed, and torch.compile(backend="autotune") once
with the first seed. The results are the accuracies, the difference of the two
loss curves with the first seed beside that of torch's curves with two seeds, a
JSON record and a chart of the curves.

Tune the training step first:
  autotune tune --arch sm90 --batch 256 --train --db training.db
  python benchmarks/programs/train.py --db training.db
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import training_chart
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from training_curves import OURS, POINTS, TORCH, Run, compared

from autotune.core import AutotuneError
from autotune.ir import DTYPES
from autotune_cli import synthetic_dataset
from autotune_cli.command_line import add_device, add_record, add_show, positive, torch_device
from autotune_cli.main import run_program
from autotune_cli.record import provenance, slug, write
from fused_resnet.compile_backend import autotune
from fused_resnet.networks.se_resnet9_fixup import SEResNet9Fixup

METHOD = {
    "loss": "cross entropy with label smoothing 0.05, one value for each step",
    "top1": "share of images, which no step saw, whose largest output is their class",
    "torch": "eager torch, channels last",
    "autotune": 'torch.compile(backend="autotune"), channels last',
    "deviation": "root mean square difference of the curves of torch and autotune with the first seed, each a series "
    f"of the means of {POINTS} parts of the run",
    "spread": "the same of torch's curves with two seeds, the mean over all pairs of seeds",
}


class Classifier(nn.Module):
    """SE-ResNet9-Fixup, the mean over its pixels, and a linear layer: (N, 3, 64, 64) -> (N, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = SEResNet9Fixup()
        self.head = nn.Linear(SEResNet9Fixup.planes[-1], synthetic_dataset.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Classify images."""
        y: Tensor = self.head(self.encoder(x).mean((2, 3)))
        return y


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", metavar="FILE", help="the tuning database of the training step")
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
    add_record(results, "train-se_resnet9_fixup-DEVICE-DTYPE")
    add_show(results, "only draw the chart of a record")


def main(arguments: argparse.Namespace) -> None:
    if arguments.show:
        record = _read(arguments.show)
        _draw(record, arguments.show.with_suffix(".png"))
        return
    if not arguments.db:
        raise AutotuneError("give --db FILE, the database of `autotune tune --train`")
    if not Path(arguments.db).exists():
        raise AutotuneError(f"there is no tuning database '{arguments.db}': run `autotune tune --train` first")
    device = torch_device(arguments.device)
    dtype = arguments.dtype or ("f16" if device.type == "cuda" else "f32")
    about = provenance(device, arguments.out)
    path = arguments.out or Path(f"train-se_resnet9_fixup-{slug(about['machine']['device'])}-{dtype}.json")
    options = ("steps", "batch", "images", "seeds")
    record = {
        **about,
        "arguments": {key: getattr(arguments, key) for key in options} | {"dtype": dtype},
        "method": METHOD,
    }
    wanted = [(TORCH, seed) for seed in range(arguments.seeds)] + [(OURS, 0)]
    runs: list[Run] = []
    for number, (way, seed) in enumerate(wanted, 1):
        with Console(stderr=True).status(f"{way}, seed {seed} ({number} of {len(wanted)}): {arguments.steps} steps"):
            runs.append(train(arguments, way, seed, device, DTYPES[dtype]))
        record |= {"runs": [asdict(run) for run in runs], **compared(runs)}
        write(record, path)  # after every run: an interrupted command keeps what it trained
    show(record)
    print(f"wrote {path}")
    _draw(record, path.with_suffix(".png"))


def train(arguments: argparse.Namespace, way: str, seed: int, device: torch.device, dtype: torch.dtype) -> Run:
    """Train a new network. The seed draws its weights and all images."""
    torch.compiler.reset()
    torch.manual_seed(seed)
    network = Classifier().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    call = network
    if way == OURS:
        options: Any = {"tuning_db": str(arguments.db)}
        call = torch.compile(network, backend=autotune, dynamic=False, options=options)
    generator = torch.Generator(device).manual_seed(seed)
    size, amp = SEResNet9Fixup.input_size, None if dtype == torch.float32 else dtype
    started = time.perf_counter()
    losses = synthetic_dataset.train(network, arguments.steps, arguments.batch, size, generator, call=call, amp=amp)
    seconds = time.perf_counter() - started
    return Run(way, seed, losses.tolist(), _top1(network, arguments.images, arguments.batch, device), round(seconds, 1))


@torch.inference_mode()
def _top1(network: nn.Module, count: int, batch: int, device: torch.device) -> float:
    generator, right = torch.Generator(device).manual_seed(2**31), 0
    for begin in range(0, count, batch):
        part = min(batch, count - begin)
        x, classes = synthetic_dataset.images(part, SEResNet9Fixup.input_size, generator)
        right += int((network(x.contiguous(memory_format=torch.channels_last)).argmax(1) == classes).sum())
    return float(right / count)


def show(record: dict[str, Any]) -> None:
    """Print the table of a record."""
    table = Table(title="SE-ResNet9-Fixup on generated images")
    for heading in ("way", "seed", "final loss", "top-1", "seconds"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for run in (Run(**entry) for entry in record["runs"]):
        table.add_row(run.way, str(run.seed), f"{run.curve()[-1]:.3f}", f"{run.top1:.1%}", f"{run.seconds:.0f}")
    console = Console()
    console.print(table)
    if record["deviation"] is not None:
        spread = f"; torch's curves of two seeds differ by {record['spread']:.2g}" if record["spread"] else ""
        console.print(f"curves of {TORCH} and {OURS}, seed 0, differ by {record['deviation']:.2g}{spread}")


def _draw(record: dict[str, Any], path: Path) -> None:
    try:
        training_chart.draw([Run(**entry) for entry in record["runs"]], record["machine"]["device"], path)
    except ImportError:
        print(f"no chart: matplotlib is not installed; draw it later with --show {path.with_suffix('.json')}")
    else:
        print(f"wrote {path}")


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text())
        _ = [Run(**entry) for entry in record["runs"]], record["machine"]["device"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise AutotuneError(f"cannot read a record of `train.py` from {path}: {problem}") from problem
    found: dict[str, Any] = record
    return found


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
