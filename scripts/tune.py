"""Tune a network's layers for one architecture and keep every trial in a database.

Example: python scripts/tune.py --arch sm80 --batch 128
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from _cli import positive, run, seconds
from _live import LiveProgress
from _tables import winners
from rich.console import Console

from autotune.arch import ARCHITECTURES, Architecture, architecture, cpu_targets, of_capability
from autotune.errors import UnknownNameError
from autotune.families.base import PERMISSIONS
from autotune.problem import dtype_name
from autotune.report import lines
from autotune.tune import Options, Tuning
from autotune.worker import Worker
from fused_resnet.graph import GRAPHS, network
from tuning_db import Store

UNTIMED_TRIALS = 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--arch", default="auto", help=f"auto (the GPU's, else cpu), {', '.join(ARCHITECTURES)}")
    parser.add_argument("--model", default="se_resnet9_fixup", help=f"network: {', '.join(GRAPHS)}")
    parser.add_argument(
        "--in-channels", type=positive, metavar="N", default=3, help="channels of the input (default 3)"
    )
    parser.add_argument("--batch", type=positive, metavar="N", help="batch size (default 128, on a CPU 8)")
    parser.add_argument("--dtype", help="f16, bf16, tf32 or f32 (default f16, on a CPU f32)")
    parser.add_argument("--db", type=Path, metavar="FILE", help="database (default tuning_db/MODEL_ARCH.db)")
    parser.add_argument(
        "--trials", type=positive, metavar="N", help="configs a family may try for a problem (default 64, on a CPU 24)"
    )
    parser.add_argument(
        "--budget",
        type=seconds,
        metavar="TIME",
        help="time for the search, such as 90s or 5m (default 6m, on a CPU 90s)",
    )
    parser.add_argument(
        "--jobs", type=positive, default=len(os.sched_getaffinity(0)), help="compilers at once (default: all cores)"
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=[name.replace("_", "-") for name in PERMISSIONS],
        help="; ".join(f"{name.replace('_', '-')}: {meaning}" for name, meaning in PERMISSIONS.items()),
    )
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="seed of the search")
    return parser.parse_args()


def gpu_capability() -> int | None:
    """Compute capability of the GPU times ten, or None where torch sees none."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def choose_device(arch: Architecture, capability: int | None) -> tuple[str | None, str]:
    """The device that can time kernels for `arch`, if there is one, and the target to compile for."""
    if not arch.is_cuda:
        return "cpu", cpu_targets()[0]
    assert arch.capability
    if capability is None or capability < arch.capability:
        return None, f"sm_{arch.capability}"
    return "cuda:0", f"sm_{capability}"


def show_compiled(console: Console, tuning: Tuning) -> None:
    """What was done where nothing could be timed."""
    options = tuning.options
    compiled = sum(row.error is None for row in tuning.kernels.values())
    failed = len(tuning.kernels) - compiled
    console.print(f"\n{compiled} kernels compiled for {options.target}, {failed} would not compile.")
    console.print(f"[bold]Nothing was timed:[/] no GPU here runs {options.arch.name} code. Run the same command with")
    console.print("the same database on a machine with one; it starts from what is compiled.")


def show_winners(console: Console, tuning: Tuning, title: str) -> None:
    """The table of winners and, on a GPU, what the whole network takes."""
    layers = [(layer.name, layer.problem) for layer in tuning.network.layers]
    console.print(winners(lines(tuning.store, tuning.device, layers), f"{title} on {tuning.device.name}"))
    if plan := tuning.store.plan(tuning.device, tuning.network.key):
        gain = plan.details["alone_us"] / plan.median_us
        console.print(f"The network as one CUDA graph: {plan.median_us:.1f} us, {gain:.2f} times as fast as with the")
        console.print("winners above: where other candidates are faster among their neighbours, they were taken.")


def main() -> int:
    args = arguments()
    capability = gpu_capability()
    if args.arch == "auto":
        arch = of_capability(capability) if capability else architecture("cpu")
    else:
        arch = architecture(args.arch)
    device, target = choose_device(arch, capability)
    dtype = dtype_name(args.dtype or arch.dtypes[0])
    if dtype not in arch.dtypes or dtype == "s8":  # the networks are not quantized
        dtypes = " or ".join(name for name in arch.dtypes if name != "s8")
        raise UnknownNameError(f"{args.model} has no kernels in {dtype} for {arch.name}: choose {dtypes}")
    batch = args.batch or (128 if arch.is_cuda else 8)
    wanted = network(args.model, batch, args.in_channels, dtype)
    path = args.db or Path("tuning_db") / f"{args.model}_{arch.name}.db"
    trials = args.trials or (24 if not arch.is_cuda else 64 if device else UNTIMED_TRIALS)
    budget = args.budget or (360.0 if arch.is_cuda else 90.0)
    allow = tuple(name.replace("-", "_") for name in args.allow)
    options = Options(arch, target, trials, budget, args.jobs, args.seed, allow)

    console = Console()
    started = time.monotonic()
    interrupted = False
    with Store.create(path) as store, Worker(device) if device else nullcontext() as worker:
        progress = LiveProgress(console, [(layer.name, layer.problem) for layer in wanted.layers])
        tuning = Tuning(store, wanted, options, worker, progress)
        with progress:
            try:
                tuning.run()
            except KeyboardInterrupt:
                interrupted = True
        took = time.monotonic() - started
        if device is None:
            show_compiled(console, tuning)
        elif not interrupted or "device" in vars(tuning):
            show_winners(console, tuning, f"{args.model}, batch {batch}, {dtype}, {arch.name} kernels")
        if interrupted:
            console.print("Interrupted: every finished trial is kept; run the same command to go on.")
        console.print(f"{took:.0f} s; database {path}")
    return 130 if interrupted else 0


if __name__ == "__main__":
    run(main)
