"""Tune a network's layers, or single problems, for one architecture, and keep
every trial in a database.

At the end it says where the seconds went. Overhead are those in which the
device neither verified nor timed, nor waited for compilers.

Examples:
  python scripts/tune.py --arch sm80 --batch 1,32,128
  python scripts/tune.py --arch sm90 --model torchvision:resnet50 --batch 128
  python scripts/tune.py --arch cpu --problem "conv2d n=8 h=32 w=32 c=64 k=64
         r=3 s=3 pad=1 dtype=f32 epilogue=bias,relu"
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import torch
from rich.console import Console

from autotune.core import (
    ARCHITECTURES,
    FAMILIES,
    Architecture,
    UnknownNameError,
    architecture,
    cpu_targets,
    device_arch,
    device_name,
    of_capability,
)
from autotune.families import families, family, use
from autotune.families.base import PERMISSIONS
from autotune.ir import DTYPES, OPERATORS, Problem
from autotune.ir.epilogue import STEPS
from autotune.measure import BUFFERS, TIMERS, Timing, Worker
from autotune.search import DEFAULT_STRATEGY, STRATEGIES
from autotune.tuner import OBJECTIVES, Options, Tuning
from autotune_cli import models, tune_summary
from autotune_cli.command_line import database, percent, positive, run, seconds, sizes
from autotune_cli.problem_usage import usage
from autotune_cli.tune_progress import LiveProgress
from autotune_cli.tune_request import Work, asked
from fused_resnet.model_source import PRECISIONS
from fused_resnet.networks.se_resnet9_fixup_layers import GRAPHS
from tuning_db import DatabaseError, Store

UNTIMED_TRIALS = 6


def grammar() -> str:
    """How problems are written, for --help."""
    width = min(100, shutil.get_terminal_size().columns - 2)
    usages = [
        textwrap.fill(usage(operator), width, initial_indent="  ", subsequent_indent="    ")
        for operator in OPERATORS.values()
    ]
    about = f"""
        A problem is an operator and its fields in any order; those in brackets may be left out, and one number serves
        for both of a pair. DTYPE is {", ".join(DTYPES)}. An epilogue is none, or steps joined by commas:
        {", ".join(STEPS)}. docs/reference/problems.md says what they mean.
    """
    return "\n".join(["problems:", *usages, "", textwrap.fill(" ".join(about.split()), width)])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--arch", default="auto", help=f"auto (the GPU's, else cpu), {', '.join(ARCHITECTURES)}")
    network = parser.add_argument_group("a network")
    network.add_argument(
        "--model", metavar="MODEL", default=None, help=models.HELP.replace("%(default)s", next(iter(GRAPHS)))
    )
    network.add_argument("--in-channels", type=positive, metavar="N", help="input channels of a network of ours")
    network.add_argument("--input", type=models.shape, metavar="C,H,W", help="one sample of any other")
    network.add_argument(
        "--batch",
        type=sizes,
        action="extend",
        metavar="N[,N]",
        help="batch sizes, one after the other, each with a search of its own (default 128, on a CPU 8)",
    )
    network.add_argument("--dtype", help="of its tensors: f16, bf16 or f32 (default f16, on a CPU and for tf32 f32)")
    network.add_argument("--precision", choices=list(PRECISIONS), help=models.PRECISION)
    single = parser.add_argument_group("or problems of your own")
    single.add_argument(
        "--problem", action="append", metavar="TEXT", help="a problem to tune instead of a network; may be repeated"
    )
    single.add_argument("--problems", type=Path, metavar="FILE", help="a file of problems, one a line, # for comments")
    parser.add_argument(
        "--families",
        type=Path,
        action="append",
        metavar="DIR",
        help=f"load families of your own from here too (docs/guide/add-a-family.md); may be repeated, adds to ${FAMILIES}",
    )
    parser.add_argument(
        "--db",
        type=database,
        help="a file, or a server: postgresql+psycopg://user@host/name (default tuning_db/MODEL_ARCH.db or "
        "problems_ARCH.db); several processes may tune into one",
    )
    add_search(parser)
    parser.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        default=len(os.sched_getaffinity(0)),
        help="compilers at once (default: all cores)",
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=[name.replace("_", "-") for name in PERMISSIONS],
        help="; ".join(f"{name.replace('_', '-')}: {meaning}" for name, meaning in PERMISSIONS.items()),
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FAMILY",
        help="try no families but these; may be repeated. Those of CUTLASS 3.x, whose kernels take most of a minute to "
        "compile, are tried only so",
    )
    parser.add_argument(
        "--buffers",
        choices=BUFFERS,
        default=BUFFERS[0],
        help="time on operands that stay in the cache, as far as they fit (the default), or on others at each launch",
    )
    parser.add_argument(
        "--timer",
        choices=TIMERS,
        default=TIMERS[0],
        help="on a GPU, time graphs of many launches (the default), or launches one by one between events",
    )
    parser.add_argument(
        "--vendor",
        choices=["cudnn", "none"],
        default="cudnn",
        help="on a GPU, time all plans of cuDNN too (the default), which nvidia-cudnn-frontend finds, or none",
    )
    if {"-h", "--help"} & set(sys.argv):
        parser.epilog = grammar()
    return parser.parse_args()


def add_search(parser: argparse.ArgumentParser) -> None:
    """The options of the search."""
    search = parser.add_argument_group("the search (docs/internals/search.md)")
    search.add_argument(
        "--strategy",
        choices=list(STRATEGIES),
        default=DEFAULT_STRATEGY,
        help="; ".join(f"{name}: {strategy.meaning}" for name, strategy in STRATEGIES.items())
        + f" (default {DEFAULT_STRATEGY})",
    )
    search.add_argument(
        "--trials", type=positive, metavar="N", help="configs to try for a problem, at most (default 160, on a CPU 32)"
    )
    search.add_argument(
        "--budget",
        type=seconds,
        metavar="TIME",
        help="time for the search of each batch size, such as 90s or 5m (default 6m, on a CPU 90s)",
    )
    search.add_argument(
        "--gain",
        type=percent,
        metavar="PERCENT",
        default=0.01,
        help="end a problem's search where no config is expected to gain so much (default 1%%; 0%%: never)",
    )
    search.add_argument(
        "--limit", type=positive, metavar="N", help="choose among N configs a family: the prior's best, some by chance"
    )
    search.add_argument(
        "--objective",
        action="append",
        choices=list(OBJECTIVES),
        help="; ".join(f"{name}: {objective.meaning}" for name, objective in OBJECTIVES.items())
        + " (default time); several: the trade-offs between them are listed",
    )
    search.add_argument("--seed", type=int, metavar="N", default=0, help="seed of the search")


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


def refuse_other_timing(store: Store, device: str, problems: list[Problem], timing: Timing) -> None:
    """Raises DatabaseError if the database holds times that were taken in another way: they cannot be compared."""
    if not (row := store.device(device_name(torch.device(device)))):
        return
    for problem in problems:
        for measured in store.measurements(row, str(problem), "ok", most=1):
            for name, default in (("buffers", BUFFERS[0]), ("timer", TIMERS[0])):
                if (before := measured.details.get(name, default)) != getattr(timing, name):
                    said = f"{store.name} was timed with --{name} {before}"
                    raise DatabaseError(f"{said}: keep to that, or give another --db")


def main() -> int:
    args = arguments()
    use(args.families or [])
    families()  # an operator may be a user's own
    capability = gpu_capability()
    if args.arch == "auto":
        arch = of_capability(capability) if capability else architecture("cpu")
    else:
        arch = architecture(args.arch)
    device, target = choose_device(arch, capability)
    arch = device_arch(arch, torch.device(device)) if device else arch
    works = asked(args, arch)
    path = args.db or Path("tuning_db") / f"{works[0].name}_{arch.name}.db"
    trials = args.trials or (32 if not arch.is_cuda else 160 if device else UNTIMED_TRIALS)
    budget = args.budget or (360.0 if arch.is_cuda else 90.0)
    allow = tuple(name.replace("-", "_") for name in args.allow)
    only = tuple(family(name).name for name in args.only)
    objectives = tuple(dict.fromkeys(args.objective or ["time"]))
    if "energy" in objectives and not arch.is_cuda:
        raise UnknownNameError("--objective energy: only a GPU tells what it consumes")
    options = Options(
        *(arch, target, trials, budget, args.jobs, args.seed, allow, only),
        strategy=args.strategy,
        limit=args.limit or 0,
        gain=args.gain,
        objectives=objectives,
        vendor=args.vendor,
    )
    timing = Timing(args.timer, args.buffers, "energy" in objectives)
    with Store.create(path) as store, Worker(device, timing=timing) if device else nullcontext() as worker:
        if device:
            refuse_other_timing(store, device, [problem for work in works for _, problem in work.named], timing)
        ended = all(tune(work, store, options, worker) for work in works)
    return 0 if ended else 130


def tune(wanted: Work, store: Store, options: Options, worker: Worker | None) -> bool:
    """Search, settle, and say what came of it; False where that was interrupted."""
    console = Console()
    ended = True
    if not wanted.network:
        for name, problem in wanted.named:
            console.print(f"{name:>3}  {problem}", highlight=False, markup=False)
    progress = LiveProgress(console, wanted.named)
    tuning = Tuning(store, [problem for _, problem in wanted.named], options, worker, progress)
    with progress:
        try:
            tuning.run()
            if wanted.network:
                tuning.settle_inside(wanted.network)
        except KeyboardInterrupt:
            ended = False
    if worker is None:
        tune_summary.show_compiled(console, tuning)
    elif ended or "device" in vars(tuning):
        tune_summary.show_winners(console, tuning, wanted)
        tune_summary.show_tradeoffs(console, tuning, wanted)
    if ended:
        tune_summary.show_gaps(console, tuning, wanted)
    else:
        console.print("Interrupted: every finished trial is kept; run the same command to go on.")
    tune_summary.show_cost(console, tuning, progress, store.name)
    return ended


if __name__ == "__main__":
    run(main)
