"""Compile kernels of a family, and list those that do not compile.

The kernels are all of an architecture, or a sample. Every config that a family
accepts must compile. No GPU is needed.

Example:
  python tests/campaigns/legality.py --arch sm75 --dtype s8 --sample 200
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from autotune.codegen.build_queue import build
from autotune.core import UnknownNameError, architecture
from autotune.families import PERMISSIONS, Config, Kernel, family
from autotune.ir import Epilogue
from autotune_cli.command_line import add_jobs, positive
from autotune_cli.main import run_program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", required=True, help="the architecture: sm70, sm75, ...")
    parser.add_argument("--family", default="cutlass2_conv2d", help="the family (default cutlass2_conv2d)")
    parser.add_argument("--dtype", help="one dtype (default: all that family and architecture have)")
    parser.add_argument("--epilogue", default="bias,relu", help="the epilogue (default bias,relu)")
    parser.add_argument(
        "--where", action="append", default=[], metavar="NAME=VALUE", help="only configs with this value of a parameter"
    )
    parser.add_argument(
        "--sample", type=positive, metavar="N", help="N random configs for each dtype (default: all configs)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default 0)")
    add_jobs(parser)


def chosen_kernels(args: argparse.Namespace) -> list[Kernel]:
    """Return the kernels to compile."""
    arch, found, epilogue = architecture(args.arch), family(args.family), Epilogue.parse(args.epilogue)
    if arch.name not in found.architectures:
        raise UnknownNameError(f"{found.name} has no kernels for {arch.name}: choose {', '.join(found.architectures)}")
    dtypes = [dtype for dtype in arch.dtypes if dtype in found.dtypes and args.dtype in (None, dtype)]
    if not dtypes:
        raise UnknownNameError(f"{found.name} has no kernels in {args.dtype} for {arch.name}")
    wanted = dict(word.split("=", 1) for word in args.where)
    kernels = []
    for dtype in dtypes:
        configs: list[Config] = [
            config
            for config in found.configs(arch, dtype, epilogue, tuple(PERMISSIONS))
            if all(str(config.get(name)) == value for name, value in wanted.items())
        ]
        if args.sample and args.sample < len(configs):
            configs = random.Random(f"{args.seed} {dtype}").sample(configs, args.sample)
        kernels += [Kernel.of(found.name, config, dtype, epilogue, f"sm_{arch.capability}") for config in configs]
    return kernels


def main(args: argparse.Namespace) -> int:
    console = Console()
    kernels = chosen_kernels(args)
    failed: dict[Kernel, str] = {}
    started = time.monotonic()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"{len(kernels)} kernels", total=len(kernels))
        for built in build(kernels, args.jobs):
            progress.advance(task, len(built.unit.kernels))
            if built.path is None:
                failed |= dict.fromkeys(built.unit.kernels, built.error)
    minutes = (time.monotonic() - started) / 60 * args.jobs
    if failed:
        table = Table("kernel", "error of the compiler", title="Legal kernels that do not compile", show_lines=True)
        for kernel, error in failed.items():
            table.add_row(str(kernel), escape(error))
        console.print(table)
        for first, count in Counter(error.splitlines()[0] for error in failed.values()).most_common():
            console.print(f"{count} x {escape(first)}")
    rate = len(kernels) / minutes if minutes else 0.0
    console.print(f"{len(kernels)} kernels for {args.arch}, {len(failed)} failed; {rate:.0f} kernels per core-minute")
    return 1 if failed else 0


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
