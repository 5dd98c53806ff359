"""Reads from the arguments of `autotune tune` what to tune: a network's layers, or single problems."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from autotune.core import Architecture, ProblemError, UnknownNameError
from autotune.ir import all_forms, dtype_name, parse
from autotune.tuner import TuneRequest, network_request, step_request
from autotune_cli import models
from autotune_cli.command_line import DEFAULT_MODEL, default_batch
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
