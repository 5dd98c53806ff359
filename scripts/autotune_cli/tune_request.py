"""Reads from the arguments of `autotune tune` what to tune, and on which machines.

A run tunes a network's layers or single problems, on this machine or on those of a cluster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from autotune.codegen import BuildBatch
from autotune.core import Architecture, AutotuneError, DeviceKind, ProblemError, UnknownNameError
from autotune.ir import all_forms, dtype_name, parse
from autotune.measure import StartChild
from autotune.tuner import (
    Machines,
    MeasuringDevice,
    TuneRequest,
    device_groups,
    local_devices,
    network_request,
    step_request,
)
from autotune_cli import models
from autotune_cli.command_line import DEFAULT_MODEL, default_batch, require_gpus
from autotune_cli.problem_file import read_problems
from fused_resnet.model_source import PRODUCTS
from fused_resnet.precisions import TF32

TENSORS = ("f16", "bf16", "f32")
"""Dtypes that the tensors of a network can have."""


@dataclass(frozen=True, kw_only=True)
class StepRequest(TuneRequest):
    """A request for a training step of a model.

    Attributes:
        model: The model.
        batch: Batch size.
        dtype: Dtype of the tensors that are multiplied: "f16", "bf16" or "f32".
        precision: "tf32" for products in TF32; None otherwise.
    """

    model: models.Model
    batch: int
    dtype: str
    precision: str | None


def num_requests(args: argparse.Namespace) -> int:
    """Return the number of batch sizes that are tuned, 1 for single problems."""
    return 1 if args.problem or args.problems else len(_batches(args, 1))


def tune_requests(
    args: argparse.Namespace, arch: Architecture, before_capture: Callable[[], object]
) -> list[TuneRequest]:
    """Return what the arguments request: a network once for each batch size, or single problems.

    Args:
        args: The arguments.
        arch: The architecture of the kernels.
        before_capture: Called before a network is captured, which takes seconds, when its arguments are known to be
            valid.

    Raises:
        AutotuneError: Options exclude each other, or the architecture has no kernels for a dtype.
    """
    of_network = ("model", "in_channels", "input", "batch", "dtype", "precision", "train")
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
    batches = _batches(args, default_batch(arch.is_cuda))
    for batch in batches:
        suffix = f", {args.precision}" if args.precision else ""
        if args.train:
            ending = f", batch {batch}" if len(batches) > 1 else ""
            step = model.step_problems(batch, dtype, args.precision)
            title = f"{model.name}, training step at batch {batch}, {dtype}{suffix}"
            named = [(name + ending, problem) for name, problem in step.items()]
            made = vars(step_request(model.name, title, named, arch))
            requests.append(StepRequest(**made, model=model, batch=batch, dtype=dtype, precision=args.precision))
            continue
        network = model.network(batch, dtype, args.precision)
        title = f"{model.name}, batch {batch}, {dtype}{suffix}"
        requests.append(network_request(model.name, title, network, arch))
    return requests


def _batches(args: argparse.Namespace, default: int) -> list[int]:
    return list(dict.fromkeys(args.batch or [default]))


def _no_dtype(arch: Architecture, dtype: str, *others: str) -> str:
    return f"{arch.name} has no kernels in {dtype}: choose {' or '.join(others)}"


@contextmanager
def machines(args: argparse.Namespace) -> Iterator[Machines]:
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
