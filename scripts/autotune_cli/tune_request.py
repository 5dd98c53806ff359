"""What the arguments of tune.py ask to be tuned: a network's layers, or problems of one's own."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from autotune.core import Architecture, ProblemError, UnknownNameError
from autotune.ir import Network, Problem, dtype_name, parse
from autotune_cli import models
from autotune_cli.problem_usage import read_problems
from fused_resnet.model_source import TF32
from fused_resnet.networks.se_resnet9_fixup_layers import GRAPHS

PRODUCTS = {"int8": ("s8",), "tf32": ("tf32",)}
"""The dtypes that a precision multiplies in, beside the network's."""


@dataclass(frozen=True)
class Work:
    """What is to be tuned: named problems and, where they are its layers, the network."""

    name: str
    title: str
    named: list[tuple[str, Problem]]
    network: Network | None = None


def asked(args: argparse.Namespace, arch: Architecture) -> list[Work]:
    """What the arguments ask for, a network once for each batch size; raises AutotuneError."""
    of_network = ("model", "in_channels", "input", "batch", "dtype", "precision")
    if args.problem or args.problems:
        if given := [f"--{name.replace('_', '-')}" for name in of_network if getattr(args, name) is not None]:
            raise ProblemError(f"{' and '.join(given)}: only for a network; a problem's text says all of itself")
        problems = [parse(text) for text in args.problem or []]
        problems += read_problems(args.problems) if args.problems else []
        for problem in problems:
            if problem.dtype not in arch.dtypes:
                raise UnknownNameError(f"'{problem}': {_no_dtype(arch, problem.dtype)}")
        named = [(str(number), problem) for number, problem in enumerate(dict.fromkeys(problems), 1)]
        return [Work("problems", f"{len(named)} problem{'s' * (len(named) > 1)}", named)]
    dtype = dtype_name(args.dtype or ("f32" if args.precision == TF32 else arch.dtypes[0]))
    if dtype in ("s8", "tf32"):
        raise UnknownNameError(f"--dtype {args.dtype}: a network's tensors are f16, bf16 or f32; give --precision, too")
    for needed in (dtype, *PRODUCTS.get(args.precision, ())):
        if needed not in arch.dtypes:
            raise UnknownNameError(_no_dtype(arch, needed))
    model = models.load(args.model or next(iter(GRAPHS)), args.input, args.in_channels)
    works = []
    for batch in dict.fromkeys(args.batch or [128 if arch.is_cuda else 8]):
        wanted = model.network(batch, dtype, args.precision)
        title = f"{model.name}, batch {batch}, {dtype}" + (f", {args.precision}" if args.precision else "")
        works.append(Work(model.name, title, [(layer.name, layer.problem) for layer in wanted.all_layers], wanted))
    return works


def _no_dtype(arch: Architecture, dtype: str) -> str:
    return f"{arch.name} has no kernels in {dtype}: choose {' or '.join(arch.dtypes)}"
