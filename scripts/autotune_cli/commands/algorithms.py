"""List every algorithm of cuDNN for a convolution in its three passes.

The list has the numbered algorithms of the classic API and the plans of the
graph API, verified and timed, with workspace, determinism and arithmetic.

Examples:
  autotune algorithms --problem "conv2d n=32 h=56 w=56 c=64
         k=64 r=3 s=3 pad=1 dtype=f16"
  autotune algorithms --model torchvision:resnet50 --batch 32
         --layer layer1.0.conv1 --order workspace --plot pareto.png
  autotune algorithms --show record.json --order energy

docs/guide/cudnn-algorithms.md describes how to choose one of them for a layer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from autotune.core import AutotuneError
from autotune.cudnn_algorithms import DIRECTIONS, KINDS, ORDERS, Algorithm, benchmark
from autotune.ir import parse
from autotune.ir.operators import Convolution
from autotune.libraries import cudnn
from autotune.measure import CandidateBench
from autotune_cli.algorithms.chart import check, draw
from autotune_cli.algorithms.layers import layers_of
from autotune_cli.algorithms.report import read, show
from autotune_cli.command_line import MODEL, output, positive, shape, size
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
    if args.plot:
        check(args.plot)
    record = read(args.show) if args.show else measure(args)
    show(record, args.order, args.workspace_limit, args.deterministic, args.top)
    if args.plot:
        draw(record, "energy" if args.order == "energy" else "workspace", args.plot)
        Console().print(f"wrote {args.plot}", highlight=False)
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options]\n       with one of --problem, --problems, --model and --show"
    source = parser.add_argument_group("convolutions (one of these)").add_mutually_exclusive_group(required=True)
    source.add_argument("--problem", metavar="TEXT", help="a convolution; its epilogue is ignored")
    source.add_argument("--problems", type=Path, metavar="FILE", help="a file with one problem a line")
    source.add_argument("--model", metavar="MODEL", help=MODEL)
    source.add_argument("--show", type=Path, metavar="FILE.json", help="only print, and plot, a record")
    model = parser.add_argument_group("with --model")
    model.add_argument("--layer", metavar="PATTERN", help="names of its convolutions (default: all)")
    model.add_argument("--batch", type=positive, metavar="N", help="batch size (default 32)")
    model.add_argument("--input", type=shape, metavar="C,H,W", help="shape of one sample, if it is not known")
    model.add_argument("--dtype", help="f16 (default), bf16, f32 or tf32")
    measured = parser.add_argument_group("measurement")
    measured.add_argument(
        "--pass",
        dest="passes",
        action="append",
        choices=DIRECTIONS,
        help=f"{', '.join(DIRECTIONS)}; may be repeated (default: all)",
        metavar="PASS",
    )
    measured.add_argument("--only", choices=KINDS, help="only the classic algorithms, or only engines of the graph API")
    measured.add_argument("--nchw", action="store_true", help="tensors in torch's contiguous format, not channels-last")
    measured.add_argument("--energy", action="store_true", help="also measure energy, as --order energy does")
    listed = parser.add_argument_group("results")
    listed.add_argument("--order", choices=list(ORDERS), default="time", help="order of the list (default: time)")
    listed.add_argument(
        "--workspace-limit", type=size, metavar="SIZE", help="list only up to this workspace, such as 64M"
    )
    listed.add_argument(
        "--deterministic", action="store_true", help="list only algorithms with the same bits in each call"
    )
    listed.add_argument("--top", type=positive, metavar="N", help="lines for each pass (default: all)")
    listed.add_argument("--json", type=output, metavar="FILE", help="write a record of all algorithms")
    listed.add_argument("--plot", type=output, metavar="FILE", help="draw time against workspace, or energy")


def check_model_options(args: argparse.Namespace) -> None:
    """Raise AutotuneError if an option of --model is given without it; set the defaults with it."""
    for name, default in (("layer", "*"), ("batch", 32), ("input", None), ("dtype", "f16")):
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
        **provenance(device),
        "cudnn": torch.backends.cudnn.version(),
        "memory_format": "contiguous" if args.nchw else "channels_last",
        "method": METHOD,
        "layers": [],
    }
    console = Console(stderr=True)
    with console.status("") as status:
        for name, problem in named:
            record["layers"].append(measure_layer(args, name, problem, device, status.update))
            if args.json:
                write(record, args.json)  # after every layer: an interrupted run keeps what it measured
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
