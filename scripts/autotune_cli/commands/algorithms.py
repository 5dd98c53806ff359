"""Runs `autotune algorithms`, whose options and description are in arguments/algorithms.py."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console

from autotune.core import AutotuneError
from autotune.cudnn_algorithms import DIRECTIONS, KINDS, Algorithm, benchmark
from autotune.ir import parse
from autotune.ir.operators import Convolution
from autotune.libraries import cudnn
from autotune.measure import CandidateBench
from autotune_cli.algorithms.chart import check, draw
from autotune_cli.algorithms.layers import layers_of
from autotune_cli.algorithms.report import read, show
from autotune_cli.command_line import GPU_BATCH
from autotune_cli.problem_file import read_problems
from autotune_cli.record import provenance, write

METHOD = {
    "time": "mean over a CUDA graph of many launches, between two events; median and interquartile range of 5; "
    f"candidates slower than {benchmark.SLOW} x the best so far: single launches",
    "checked": "random operands, poisoned and fenced outputs, against a float32 reference",
    "energy": "of the whole GPU, by NVML's counter, over at least 0.3 s of calls",
    "caches": "warm: the same operands again and again",
}


def main(args: argparse.Namespace) -> int:
    check_model_options(args)
    if args.chart:
        check(args.chart)
    record = read(args.show) if args.show else measure(args)
    show(record, args.order, args.workspace_limit, args.deterministic, args.top)
    if args.chart:
        draw(record, "energy" if args.order == "energy" else "workspace", args.chart)
        Console().print(f"wrote {args.chart}", highlight=False)
    return 0


def check_model_options(args: argparse.Namespace) -> None:
    """Raise AutotuneError if an option of --model is given without it; set the defaults with it."""
    for name, default in (("layer", "*"), ("batch", GPU_BATCH), ("input", None), ("dtype", "f16")):
        if getattr(args, name) is None:
            setattr(args, name, default)
        elif not args.model:
            raise AutotuneError(f"--{name} goes with --model: a problem or a record has its own")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """List, verify and time the algorithms; return the record."""
    named = wanted(args)
    if not torch.cuda.is_available():
        raise AutotuneError(
            "torch sees no NVIDIA GPU: cuDNN lists its algorithms on a GPU only; --show prints a record without one"
        )
    device = torch.device("cuda:0")
    record: dict[str, Any] = {
        **provenance(device, args.out),
        "cudnn": torch.backends.cudnn.version(),
        "memory_format": "contiguous" if args.nchw else "channels_last",
        "method": METHOD,
        "layers": [],
    }
    console = Console(stderr=True)
    with console.status("") as status:
        for name, problem in named:
            record["layers"].append(measure_layer(args, name, problem, device, status.update))
            if args.out:
                write(record, args.out)  # after every layer: an interrupted run keeps what it measured
    return record


def wanted(args: argparse.Namespace) -> Sequence[tuple[str, Convolution]]:
    """Return the convolutions to measure with their names; raises AutotuneError."""
    if args.model:
        return layers_of(args.model, args.layer, args.batch, args.input, args.dtype)
    problems = [parse(args.problem)] if args.problem is not None else read_problems(args.problems)
    return [(str(problem), benchmark.passes(problem)[DIRECTIONS[0]]) for problem in problems]


def measure_layer(
    args: argparse.Namespace, name: str, problem: Convolution, device: torch.device, tell: Any
) -> dict[str, Any]:
    """Return a layer's entry in the record; all passes are listed before anything runs."""
    started = time.perf_counter()
    kinds = (args.only,) if args.only else KINDS
    tell(f"{name}: listing")
    passes = {key: one for key, one in benchmark.passes(problem).items() if key in (args.passes or DIRECTIONS)}
    listed = {key: benchmark.list_algorithms(one, device, not args.nchw, kinds) for key, one in passes.items()}
    found: list[Algorithm] = []
    for key, (offers, _) in listed.items():
        energy = args.energy or args.order == "energy"
        case = CandidateBench(passes[key], device)
        found += benchmark.benchmark_algorithms(case, offers, energy, lambda what: tell(f"{name}: {what}"))
    missing = {reason: None for _, reasons in listed.values() for reason in reasons}
    return {
        "name": name,
        "problem": str(problem),
        "algorithms": [algorithm.as_json() for algorithm in found],
        "missing": list(missing),
        "frontend": frontend(device),
        "seconds": round(time.perf_counter() - started, 2),
    }


def frontend(device: torch.device) -> str | None:
    """Return the version of cuDNN's Python package, or None without it."""
    try:
        return cudnn.versions(device)["frontend"]
    except AutotuneError:
        return None
