"""Runs `autotune tune`, whose options and description are in arguments/tune.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from autotune.codegen import BuildBatch
from autotune.core import (
    Architecture,
    AutotuneError,
    Deadline,
    DeviceKind,
    ProblemError,
    UnknownNameError,
    timeline,
)
from autotune.families import families, family, use
from autotune.ir import Network, all_forms, dtype_name, parse
from autotune.measure import StartChild, Timing, Worker
from autotune.search import sampler_choice
from autotune.tuner import (
    DEFAULT_OBJECTIVES,
    PREPARATION,
    DeviceGroup,
    Machines,
    MeasuringDevice,
    TracedProgress,
    TuneRequest,
    TunerOptions,
    TuningTarget,
    device_groups,
    local_devices,
    network_request,
    start_in_background,
    step_request,
)
from autotune_cli import models, tune_summary
from autotune_cli.command_line import DEFAULT_MODEL, default_batch, require_gpus, torch_device
from autotune_cli.main import BY_SIGNAL, exit_code
from autotune_cli.problem_file import read_problems
from autotune_cli.step_request import StepRequest
from autotune_cli.tune_progress import LiveProgress
from fused_resnet.model_source import PRODUCTS
from fused_resnet.precisions import TF32
from fused_resnet.runs import STEP_SHARE, RunOutcome, run_options, start_run, work_deadline
from tuning_db import DatabaseError, Store
from tuning_db.location import Location, file_of, is_address
from tuning_db.postgres_backend import name_of

TENSORS = ("f16", "bf16", "f32")
"""Dtypes that the tensors of a network can have."""


def main(args: argparse.Namespace) -> int:
    args.arch = _arch(args)
    use(args.families or [])
    families()  # registers the operators of a user's families
    sampler_choice(args.sampler, len(_objectives(args)))  # a wrong name is told before a process starts
    timing = Timing(args.timer, args.buffers, "energy" in _objectives(args))
    with ExitStack() as stack:
        stack.enter_context(timeline.recording(args.trace))
        timeline.switch(timeline.Lane.PHASES, PREPARATION, since=args.started)
        found = stack.enter_context(_machines(args))
        budget = args.budget
        if budget is None:
            budget = _num_requests(args) * sum(group.target.budget for group in found.groups)
        work = work_deadline(budget, args.started)
        left = [work.share(1 / (len(found.groups) - place)) for place in range(len(found.groups) - 1)] + [work]
        code = 0
        for group, deadline in zip(found.groups, left, strict=True):
            code = max(code, _tune_group(args, found, group, deadline, timing))
            if code > BY_SIGNAL:  # it was ended
                break
        return code


def _arch(args: argparse.Namespace) -> str:
    """Return --arch, or what --device says of it.

    Raises:
        UnknownNameError: They exclude each other.
    """
    if args.device == "auto":
        return str(args.arch)
    is_gpu = torch_device(args.device).type == "cuda"
    if args.arch != "auto" and is_gpu == (args.arch == "cpu"):
        raise UnknownNameError(f"--device {args.device} and --arch {args.arch} exclude each other: give one of them")
    return str(args.arch) if is_gpu else "cpu"


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
            f"--from-db takes files, and {name_of(on_servers[0])} is on a server: give a file of `autotune db pack`"
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


def _case(network: Network) -> str:
    """Return what tells the networks of a run apart, such as "batch 8, 3x64x64"."""
    return f"batch {network.batch}, {'x'.join(map(str, network.inputs[0].shape[1:]))}"


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
        (f"{name}, {_case(request.network)}" if request.network and len(requests) > 1 else name, problem)
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


# -- what to tune, and on which machines -------------------------------------------------------------------------------


def _num_requests(args: argparse.Namespace) -> int:
    """Return the number of batch sizes and image sizes that are tuned, 1 for single problems."""
    return 1 if args.problem or args.problems else len(_batches(args, 1)) * len(args.sizes or [()])


def tune_requests(
    args: argparse.Namespace, arch: Architecture, before_capture: Callable[[], object]
) -> list[TuneRequest]:
    """Return what the arguments request: a network once for each image size and batch size, or single problems.

    Args:
        args: The arguments.
        arch: The architecture of the kernels.
        before_capture: Called before a network is captured, which takes seconds, when its arguments are known to be
            valid.

    Raises:
        AutotuneError: Options exclude each other, or the architecture has no kernels for a dtype.
    """
    of_network = ("model", "in_channels", "input", "batch", "sizes", "dtype", "precision", "train")
    if args.problem or args.problems:
        if given := [f"--{name.replace('_', '-')}" for name in of_network if getattr(args, name) not in (None, False)]:
            raise ProblemError(
                f"{' and '.join(given)}: these options are for a network; a problem's text has all of its fields"
            )
        problems = [parse(text) for text in args.problem or []]
        problems += read_problems(args.problems) if args.problems else []
        for problem in problems:
            if problem.dtype not in arch.dtypes:
                raise UnknownNameError(f"'{problem}': {_no_dtype(arch, problem.dtype, *arch.dtypes)}")
        unique = dict.fromkeys(form for problem in problems for form in all_forms(problem))
        named = [(str(number), problem) for number, problem in enumerate(unique, 1)]
        return [TuneRequest("problems", f"{len(named)} problem{'s' * (len(named) > 1)}", named)]
    dtype = dtype_name(args.dtype or ("f32" if args.precision == TF32 else arch.dtypes[0]))
    if dtype not in arch.dtypes:
        raise UnknownNameError(_no_dtype(arch, dtype, *(name for name in arch.dtypes if name in TENSORS)))
    if args.precision and PRODUCTS[args.precision] not in arch.dtypes:
        others = [name for name, products in PRODUCTS.items() if products in arch.dtypes]
        raise UnknownNameError(_no_dtype(arch, PRODUCTS[args.precision], "no --precision", *others))
    model = models.load(args.model or DEFAULT_MODEL, args.input, args.in_channels)
    before_capture()
    requests: list[TuneRequest] = []
    cases = [(one, n) for one in _sized(model, args.sizes) for n in _batches(args, default_batch(arch.is_cuda))]
    for model, batch in cases:
        case = f"batch {batch}" + (f", {'x'.join(map(str, model.shape[1:]))}" if args.sizes else "")
        suffix = f", {args.precision}" if args.precision else ""
        if args.train:
            ending = f", {case}" if len(cases) > 1 else ""
            step = model.step_problems(batch, dtype, args.precision)
            title = f"{model.name}, training step at {case}, {dtype}{suffix}"
            named = [(name + ending, problem) for name, problem in step.items()]
            made = vars(step_request(model.name, title, named, arch))
            requests.append(StepRequest(**made, model=model, batch=batch, dtype=dtype, precision=args.precision))
            continue
        network = model.network(batch, dtype, args.precision)
        title = f"{model.name}, {case}, {dtype}{suffix}"
        requests.append(network_request(model.name, title, network, arch))
    return requests


def _sized(model: models.Model, sizes: Sequence[tuple[int, int]] | None) -> list[models.Model]:
    """Return a model once for each image size; raises AutotuneError if it takes no images."""
    if sizes and len(model.shape) != 3:
        raise AutotuneError(f"--sizes is for images C,H,W, and a sample of {model.name} is {model.shape}: give --input")
    return [replace(model, shape=(model.shape[0], *size)) for size in sizes] if sizes else [model]


def _batches(args: argparse.Namespace, default: int) -> list[int]:
    return list(dict.fromkeys(args.batch or [default]))


def _no_dtype(arch: Architecture, dtype: str, *others: str) -> str:
    return f"{arch.name} has no kernels in {dtype}: choose {' or '.join(others)}"


@contextmanager
def _machines(args: argparse.Namespace) -> Iterator[Machines]:
    """Find the compilers and devices that the arguments name; the exit leaves the cluster.

    Args:
        args: The arguments, with those of `add_machines`, --arch and --jobs.

    Raises:
        AutotuneError: A device does not exist, or the cluster cannot be used.
    """
    if not args.cluster:
        yield Machines.of_this(args.arch, _here(args.devices), args.jobs)
        return
    from autotune.cluster import connected

    with connected(args.cluster) as cluster:
        kinds = cluster.devices()
        if kinds and args.devices:
            raise AutotuneError("--devices and --cluster exclude each other: workers of the cluster measure")
        devices = [_remote(kind, cluster.child(place)) for place, kind in enumerate(kinds)]
        groups = device_groups(args.arch, devices or local_devices(_here(args.devices)))
        for group in groups:
            cluster.require_versions(group.target.target)
        start_batch = cluster.start_batch if cluster.compilers else BuildBatch
        yield Machines(groups, cluster.compilers or args.jobs, start_batch, are_here=not kinds)


def _remote(kind: DeviceKind, child: StartChild) -> MeasuringDevice:
    return MeasuringDevice(kind, "cuda:0" if kind.capability else "cpu", child)  # each worker sees one GPU


def _here(numbers: Sequence[int] | None) -> list[str]:
    """Return the GPUs with these numbers; the first GPU, or the CPU, where none are given."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    require_gpus(numbers or (), count)
    return [f"cuda:{number}" for number in numbers or range(min(1, count))] or ["cpu"]
