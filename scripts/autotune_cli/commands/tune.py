"""Tune a network's layers, or single problems, for one architecture.

Every trial is kept in a database. At the end a table shows where the time went.
Overhead is the time in which the device neither verified, timed nor waited for
compilers.

Examples:
  autotune tune --arch sm80 --batch 1,32,128
  autotune tune --arch sm90 --model torchvision:resnet50 --batch 128
  autotune tune --arch sm90 --model torchvision:resnet50 --train
  autotune tune --arch cpu --problem "conv2d n=8 h=32 w=32 c=64 k=64
         r=3 s=3 pad=1 dtype=f32 epilogue=bias,relu"
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from autotune.core import ARCHITECTURES, FAMILIES, Deadline, UnknownNameError, timeline
from autotune.families import PERMISSIONS, families, family, use
from autotune.ir import DTYPES, OPERATORS
from autotune.ir.epilogue_steps import STEPS
from autotune.libraries import inductor
from autotune.measure import BUFFERS, TIMERS, Timing, Worker
from autotune.search import ANY_SAMPLER, DEFAULT_SAMPLER, SAMPLERS, sampler_choice
from autotune.tuner import (
    DEFAULT_OBJECTIVES,
    INDUCTOR_MODES,
    OBJECTIVES,
    PREPARATION,
    DeviceGroup,
    Machines,
    TracedProgress,
    TuneRequest,
    TunerOptions,
    TuningTarget,
    start_in_background,
)
from autotune_cli import models, tune_summary
from autotune_cli.command_line import (
    Group,
    add_batches,
    add_jobs,
    add_model,
    database,
    output,
    percent,
    positive,
    seconds,
)
from autotune_cli.interrupts import BY_SIGNAL, exit_code
from autotune_cli.machines import add_machines, machines
from autotune_cli.problem_usage import usage
from autotune_cli.tune_progress import LiveProgress
from autotune_cli.tune_request import StepRequest, num_requests, tune_requests
from fused_resnet.model_source import PRECISIONS
from fused_resnet.networks.se_resnet9_fixup_layers import GRAPHS
from fused_resnet.runs import RunOutcome, run_options, start_run, work_deadline
from tuning_db import DatabaseError, Store
from tuning_db.location import Location, file_of, is_address
from tuning_db.postgres_backend import name_of

STEP_SHARE = 0.25
"""Share of a run's time that is left for training steps as a whole."""


def problem_help() -> str:
    """Return the syntax of problems, for the end of --help."""
    width = min(100, shutil.get_terminal_size().columns - 2)
    usages = [
        textwrap.fill(usage(operator), width, initial_indent="  ", subsequent_indent="    ")
        for operator in OPERATORS.values()
    ]
    about = f"""
        A problem is an operator and its fields in any order. Fields in brackets are optional, and one number sets both
        values of a pair. DTYPE is {", ".join(DTYPES)}. An epilogue is none, or steps joined by commas:
        {", ".join(STEPS)}. docs/reference/problems.md describes them.
    """
    return "\n".join(["problems:", *usages, "", textwrap.fill(" ".join(about.split()), width)])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options]"
    parser.add_argument(
        "--arch", default="auto", help=f"auto (the GPU's, or cpu without one; the default), {', '.join(ARCHITECTURES)}"
    )
    parser.add_argument(
        "--db",
        type=database,
        help="the database: a file, or a server, postgresql+psycopg://user@host/name (default "
        "tuning_db/MODEL_ARCH.db or tuning_db/problems_ARCH.db); several processes may write to one",
    )
    network = parser.add_argument_group("a network")
    add_model(network, next(iter(GRAPHS)))
    parser.set_defaults(model=None)  # so that --model beside --problem is seen
    add_batches(network, "128, on a CPU 8; one search tunes all")
    network.add_argument(
        "--dtype", help="dtype of its tensors: f16, bf16 or f32 (default f16; f32 on a CPU or for tf32)"
    )
    network.add_argument("--precision", choices=list(PRECISIONS), help=models.PRECISION)
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
        "--trace", type=output, metavar="F", help="write a timeline of the run for Perfetto; .gz compresses it"
    )
    add_machines(parser)
    parser.add_argument(
        "--verbose", "-v", action="store_true", help="also show kernels, alternatives and where the time went"
    )
    add_jobs(parser)
    parser.epilog = problem_help()


def _add_search(group: Group) -> None:
    group.add_argument(
        "--sampler",
        default=DEFAULT_SAMPLER,
        metavar=f"{{{','.join(SAMPLERS)}}}|{ANY_SAMPLER}",
        help="; ".join(f"{name}: {choice.meaning}" for name, choice in SAMPLERS.items())
        + f"; {ANY_SAMPLER}: any other sampler of Optuna (default {DEFAULT_SAMPLER})",
    )
    group.add_argument(
        "--trials", type=positive, metavar="N", help="maximum configs to try for a problem (default 160, on a CPU 32)"
    )
    group.add_argument(
        "--budget",
        type=seconds,
        metavar="TIME",
        help="time for the whole run, from its start to its end, such as 90s or 5m; several batch sizes share it "
        "(default 6m for each batch size, on a CPU 90s)",
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
        help="; ".join(f"{name}: {objective.meaning}" for name, objective in OBJECTIVES.items())
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
        help=f"load families from here too (docs/guide/add-a-family.md); may be repeated, adds to ${FAMILIES}",
    )
    group.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=[name.replace("_", "-") for name in PERMISSIONS],
        help="; ".join(f"{name.replace('_', '-')}: {meaning}" for name, meaning in PERMISSIONS.items()),
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
        f"once (the default, unless ${inductor.SWITCH} is 0); max-autotune: also let it tune, which takes minutes; "
        "off: do not compile",
    )


def main(args: argparse.Namespace) -> int:
    use(args.families or [])
    families()  # registers the operators of a user's families
    sampler_choice(args.sampler, len(_objectives(args)))  # a wrong name is told before a process starts
    timing = Timing(args.timer, args.buffers, "energy" in _objectives(args))
    with ExitStack() as stack:
        stack.enter_context(timeline.recording(args.trace))
        timeline.switch(timeline.Lane.PHASES, PREPARATION, since=args.started)
        found = stack.enter_context(machines(args))
        budget = args.budget
        if budget is None:
            budget = num_requests(args) * sum(group.target.budget for group in found.groups)
        work = work_deadline(budget, args.started)
        left = [work.share(1 / (len(found.groups) - place)) for place in range(len(found.groups) - 1)] + [work]
        code = 0
        for group, deadline in zip(found.groups, left, strict=True):
            code = max(code, _tune_group(args, found, group, deadline, timing))
            if code > BY_SIGNAL:  # it was ended
                break
        return code


def _tune_group(
    args: argparse.Namespace, found: Machines, group: DeviceGroup, deadline: Deadline, timing: Timing
) -> int:
    """Tune for the devices of one kind; return the exit code."""
    target = group.target
    if timing.energy and not target.arch.is_cuda:
        raise UnknownNameError("--objective energy: only a GPU reports its energy")
    with ExitStack() as stack:
        workers = [stack.enter_context(worker) for worker in group.workers(timing, deadline)]
        requests = tune_requests(args, target.arch, lambda: stack.enter_context(start_in_background(workers)))
        steps = _settled_steps(requests, target, found)
        options = _options(args, target, found, requests)
        path = args.db or Path("tuning_db") / f"{requests[0].name}_{target.arch.name}.db"
        store = stack.enter_context(Store.create(path))
        search = deadline.before(STEP_SHARE * deadline.left) if steps else deadline
        others = None if args.from_db is None else _files(args.from_db)
        start = partial(start_run, timing=timing, others=others, start_batch=found.start_batch)
        code = tune(start, requests, store, target, options, workers, search, args.verbose)
    if not code and steps:
        from autotune_cli import step_plan  # imports torch's compiler, which takes seconds

        with Store.create(path) as store:
            for left, step in zip(range(len(steps), 0, -1), steps, strict=True):
                device = torch.device(target.device or "")
                step_plan.settle(Console(), store, str(path), step, device, deadline.share(1 / left))
    return code


def _settled_steps(requests: Sequence[TuneRequest], target: TuningTarget, found: Machines) -> list[StepRequest]:
    """Return the training steps that are timed as a whole, on a device of this machine.

    On a GPU their kernels are chosen in the whole step, which Inductor must compile for that.
    """
    steps = [one for one in requests if isinstance(one, StepRequest)]
    if not (steps and target.device and found.are_here):
        return []
    if not target.arch.is_cuda:
        return steps
    from fused_resnet.training.compile import why_not_compiled  # imports torch's compiler, which takes seconds

    return [] if why_not_compiled(torch.device(target.device)) else steps


def _files(databases: Sequence[Location]) -> list[Path]:
    """Return the files of the databases that --from-db names; a URL is fetched.

    Raises:
        DatabaseError: A database is on a server.
    """
    if on_servers := [place for place in databases if is_address(place)]:
        raise DatabaseError(
            f"--from-db takes files, and {name_of(on_servers[0])} is on a server: pack it into a file by db.py pack"
        )
    return [file_of(place) for place in databases if str(place) != "none"]


def _objectives(args: argparse.Namespace) -> tuple[str, ...]:
    return tuple(dict.fromkeys(args.objective or DEFAULT_OBJECTIVES))


def _options(
    args: argparse.Namespace, target: TuningTarget, found: Machines, requests: Sequence[TuneRequest]
) -> TunerOptions:
    return run_options(
        target,
        found.jobs,
        requests,
        trials=args.trials,
        inductor=args.inductor,
        is_here=found.are_here,
        seed=args.seed,
        allow=tuple(name.replace("-", "_") for name in args.allow),
        only=tuple(family(name).name for name in args.only),
        sampler=args.sampler,
        limit=args.limit or 0,
        gain=args.gain,
        objectives=_objectives(args),
        vendor=args.vendor,
    )


def tune(
    start: Callable[..., RunOutcome],
    requests: Sequence[TuneRequest],
    store: Store,
    target: TuningTarget,
    options: TunerOptions,
    workers: Sequence[Worker],
    deadline: Deadline,
    verbose: bool,
) -> int:
    """Tune what was requested and print the results; return the exit code: 0 unless a signal ended the run."""
    console = Console()
    named = [
        (f"{name}, batch {request.network.batch}" if request.network and len(requests) > 1 else name, problem)
        for request in requests
        for name, problem in request.named
    ]
    if not (requests[0].network or requests[0].is_step):
        for name, problem in named:
            console.print(f"{name:>3}  {problem}", highlight=False, markup=False)
    layers = [layer.problem for request in requests if request.network for layer in request.network.layers]
    progress = LiveProgress(console, named, deadline, layers)
    with progress:
        outcome = start(store, target, requests, options, workers, deadline, TracedProgress(progress))
    tuner, code = outcome.tuner, exit_code(outcome.interrupt) if outcome.interrupt else 0
    tune_summary.show_outcome(console, tuner, requests, store.name)
    if not workers:
        tune_summary.show_compiled(console, tuner)
    elif tuner.device is not None:
        for request in requests:
            tune_summary.show_winners(console, tuner, request, verbose)
            tune_summary.show_tradeoffs(console, tuner, request)
    if code:
        console.print("Interrupted. Every finished trial is kept: run the same command to continue.")
    elif tuner.out_of_time and tuner.device is None:
        console.print("The budget ended before the measuring process had started: give a longer --budget.")
    else:
        tune_summary.show_gaps(console, tuner, requests, verbose)
    tune_summary.show_faults(console)
    tune_summary.show_cost(console, tuner, progress, verbose)
    return code
