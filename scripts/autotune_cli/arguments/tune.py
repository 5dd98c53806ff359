"""Tune a network's layers, or single problems, for one architecture.

Every trial is kept in a database. At the end a table shows where the time went.
Overhead is the time in which the device was idle although kernels were
ready.

Examples:
  autotune tune --arch sm80 --batch 1,32,128
  autotune tune --arch sm90 --model torchvision:resnet50 --batch 128
  autotune tune --arch sm90 --model torchvision:resnet50 --train
  autotune tune --arch cpu --problem "conv2d n=8 h=32 w=32 c=64 k=64
         r=3 s=3 pad=1 dtype=f32 epilogue=bias,relu"
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_cli.command_line import (
    DEFAULT_MODEL,
    Group,
    add_batches,
    add_device,
    add_dtype,
    add_jobs,
    add_model,
    add_precision,
    database,
    gpu_numbers,
    image_sizes,
    output,
    percent,
    positive,
    seconds,
)

ARCHITECTURES = ("cpu", "sm70", "sm75", "sm80", "sm86", "sm89", "sm90")
"""Names of autotune.core.ARCHITECTURES."""
SAMPLERS = {
    "transfer": "a Gaussian process that learns across layers",
    "tpe": "Optuna's TPESampler, each layer on its own",
    "gp": "Optuna's GPSampler",
    "cmaes": "Optuna's CmaEsSampler",
    "random": "Optuna's RandomSampler",
    "cost-model": "ascending predicted cost",
    "brute-force": "all configs in that order, whatever --trials says",
}
"""Name in autotune.search.SAMPLERS -> meaning."""
DEFAULT_SAMPLER, ANY_SAMPLER = "transfer", "module:Class"
"""Those of autotune.search."""
OBJECTIVES = {
    "time": "microseconds of a call",
    "time-workspace": "time multiplied by the memory of operands and workspace",
    "energy": "energy of a call, on a GPU",
}
"""Name in autotune.tuner.OBJECTIVES -> meaning."""
PERMISSIONS = {"f16-accumulation": "sums of half-precision products in half precision: faster, and less exact"}
"""Name in autotune.families.PERMISSIONS, with a hyphen -> meaning."""
INDUCTOR_MODES = ("off", "default", "max-autotune")
"""Names of autotune.tuner.INDUCTOR_MODES."""
BUFFERS, TIMERS = ("resident", "rotating"), ("graph", "events")
"""Those of autotune.measure."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options]"
    add_device(parser)
    parser.add_argument(
        "--arch", default="auto", help=f"auto (that of the device; the default), {', '.join(ARCHITECTURES)}"
    )
    parser.add_argument(
        "--db",
        type=database,
        metavar="FILE",
        help="the database: a file, or a server, postgresql+psycopg://user@host/name (default "
        "tuning_db/MODEL_ARCH.db or tuning_db/problems_ARCH.db); several processes may write to one",
    )
    network = parser.add_argument_group("a network")
    add_model(network, DEFAULT_MODEL)
    parser.set_defaults(model=None)  # so that --model beside --problem is seen
    add_batches(network, "one search tunes all")
    network.add_argument(
        "--sizes",
        type=image_sizes,
        metavar="HxW[,HxW]",
        help="image sizes in place of the input's, all by one search",
    )
    add_dtype(network)
    add_precision(network)
    network.add_argument(
        "--train",
        action="store_true",
        help="tune the convolutions of a training step, forward and backward (docs/guide/training.md)",
    )
    parser.add_argument(
        "--from-db",
        type=database,
        action="append",
        metavar="FILE",
        help="try the kernels of this database before compiling any, if its code is trusted (docs/guide/databases.md); "
        "may be repeated (default: the shipped databases; none: no other database)",
    )
    single = parser.add_argument_group("or single problems")
    single.add_argument(
        "--problem",
        action="append",
        metavar="TEXT",
        help="a problem to tune; may be repeated. An input gradient with stride 1 is tuned as a convolution, too",
    )
    single.add_argument(
        "--problems", type=Path, metavar="FILE", help="a file with one problem a line; # starts a comment"
    )
    _add_search(parser.add_argument_group("search (docs/internals/search.md)"))
    _add_candidates(parser.add_argument_group("candidates"))
    timing = parser.add_argument_group("timing (docs/internals/measurement.md)")
    timing.add_argument(
        "--buffers",
        choices=BUFFERS,
        default=BUFFERS[0],
        help="resident: every launch uses the same operands, which stay in the cache if they fit (the default); "
        "rotating: each launch uses other operands",
    )
    timing.add_argument(
        "--timer",
        choices=TIMERS,
        default=TIMERS[0],
        help="on a GPU, graph: time CUDA graphs of many launches (the default); events: time single launches",
    )
    parser.add_argument(
        "--trace", type=output, metavar="FILE", help="write a timeline of the run for Perfetto; .gz compresses it"
    )
    _add_machines(parser)
    parser.add_argument(
        "--verbose", "-v", action="store_true", help="also show kernels, alternatives and where the time went"
    )
    add_jobs(parser)
    parser.epilog = "docs/reference/problems.md describes operators, fields and epilogues."


def _add_search(group: Group) -> None:
    group.add_argument(
        "--sampler",
        default=DEFAULT_SAMPLER,
        metavar=f"{{{','.join(SAMPLERS)}}}|{ANY_SAMPLER}",
        help="; ".join(f"{name}: {meaning}" for name, meaning in SAMPLERS.items())
        + f"; {ANY_SAMPLER}: any other sampler of Optuna (default {DEFAULT_SAMPLER})",
    )
    group.add_argument(
        "--trials", type=positive, metavar="N", help="maximum configs to try for a problem (default 160, on a CPU 32)"
    )
    group.add_argument(
        "--budget",
        type=seconds,
        metavar="TIME",
        help="time for the whole run, from its start to its end, such as 90s or 5m; several batch sizes and image "
        "sizes share it (default 6m for each of them, on a CPU 90s)",
    )
    group.add_argument(
        "--gain",
        type=percent,
        metavar="PERCENT",
        default=0.01,
        help="end the search of a problem when no config is expected to gain this much (default 1%%; 0%%: never)",
    )
    group.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help="search only N configs of each family: the best by the cost model and some at random",
    )
    group.add_argument(
        "--objective",
        action="append",
        choices=list(OBJECTIVES),
        help="; ".join(f"{name}: {meaning}" for name, meaning in OBJECTIVES.items())
        + " (default time); may be repeated: the search then looks for the Pareto front, which is listed",
    )
    group.add_argument("--seed", type=int, metavar="N", default=0, help="seed of the search (default 0)")


def _add_candidates(group: Group) -> None:
    group.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FAMILY",
        help="try only this family; may be repeated",
    )
    group.add_argument(
        "--families",
        type=Path,
        action="append",
        metavar="DIR",
        help="load families from here too (docs/guide/add-a-family.md); may be repeated, adds to $AUTOTUNE_FAMILIES",
    )
    group.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=list(PERMISSIONS),
        help="; ".join(f"{name}: {meaning}" for name, meaning in PERMISSIONS.items()),
    )
    group.add_argument(
        "--vendor",
        choices=["cudnn", "none"],
        default="cudnn",
        help="on a GPU, cudnn: also time all plans of cuDNN, if nvidia-cudnn-frontend is installed (the default); "
        "none: do not",
    )
    group.add_argument(
        "--inductor",
        choices=list(INDUCTOR_MODES),
        help="what torch's compiler is tried for: the whole network, and layers on torch's operators. default: compile "
        "once (the default, unless $AUTOTUNE_INDUCTOR is 0); max-autotune: also let it tune, which takes minutes; "
        "off: do not compile",
    )


def _add_machines(group: Group) -> None:
    group.add_argument(
        "--devices",
        type=gpu_numbers,
        metavar="N,...",
        help="the GPUs that measure, by their numbers; GPUs of one kind share the problems (default 0)",
    )
    group.add_argument(
        "--cluster",
        metavar="ADDRESS|FILE",
        help="a scheduler of Dask, such as tcp://host:8786, or its scheduler file; workers with the Dask resource "
        "`compile` run compilers, those with `measure` time kernels (docs/guide/several-machines.md)",
    )
