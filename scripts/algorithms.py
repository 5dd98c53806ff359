"""List every algorithm that cuDNN has for a convolution, in all three passes:
the numbered ones of its classic API and the plans of its graph API, verified
and timed, with workspace, determinism and arithmetic.

Examples:
  python scripts/algorithms.py --problem "conv2d n=32 h=56 w=56 c=64 k=64
         r=3 s=3 pad=1 dtype=f16"
  python scripts/algorithms.py --model torchvision:resnet50 --batch 32
         --layer layer1.0.conv1 --order workspace --plot pareto.png
  python scripts/algorithms.py --show record.json --order energy

docs/guide/cudnn-algorithms.md tells how to choose one of them for a layer.
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
from autotune.ir import Convolution, parse
from autotune.libraries import cudnn
from autotune.measure import CandidateBench
from autotune_cli.algorithms.chart import check, draw
from autotune_cli.algorithms.layers import layers_of
from autotune_cli.algorithms.report import read, show
from autotune_cli.command_line import output, positive, run, size
from autotune_cli.models import HELP, shape
from autotune_cli.problem_usage import read_problems
from autotune_cli.record import machine, write

METHOD = {
    "time": "mean over a CUDA graph of many launches, between two events; median and interquartile range of 5; what "
    f"takes {benchmark.SLOW} times the best so far: single launches",
    "checked": "random operands, poisoned and fenced outputs, against a float32 reference",
    "energy": "of the whole GPU, by NVML's counter, over at least 0.3 s of calls",
    "caches": "warm: the same operands again and again",
}


def main() -> int:
    args = arguments()
    if args.plot:
        check(args.plot)
    record = read(args.show) if args.show else measure(args)
    show(record, args.order, args.workspace_limit, args.deterministic, args.top)
    if args.plot:
        draw(record, "energy" if args.order == "energy" else "workspace", args.plot)
        Console().print(f"wrote {args.plot}", highlight=False)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        usage="%(prog)s (--problem TEXT | --problems FILE | --model M | --show F)\n                     [options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what").add_mutually_exclusive_group(required=True)
    what.add_argument("--problem", metavar="TEXT", help="a convolution; its epilogue is left out")
    what.add_argument("--problems", type=Path, metavar="FILE", help="a file of problems, one a line")
    what.add_argument("--model", metavar="MODEL", help=HELP.partition(" (default")[0])
    what.add_argument("--show", type=Path, metavar="FILE.json", help="only print, and plot, a record")
    model = parser.add_argument_group("with --model")
    model.add_argument("--layer", default="*", metavar="PATTERN", help="names of its convolutions (default: all)")
    model.add_argument("--batch", type=positive, default=32, metavar="N", help="batch size (default 32)")
    model.add_argument("--input", type=shape, metavar="C,H,W", help="shape of one sample, where it is not known")
    model.add_argument("--dtype", default="f16", help="f16 (default), bf16, f32 or tf32")
    parser.add_argument("--nchw", action="store_true", help="tensors in torch's contiguous format, not channels-last")
    parser.add_argument(
        "--pass",
        dest="passes",
        action="append",
        choices=DIRECTIONS,
        help=f"{', '.join(DIRECTIONS)}; may be repeated (default: all)",
        metavar="PASS",
    )
    parser.add_argument("--only", choices=KINDS, help="classic algorithms or engines of the graph API alone")
    parser.add_argument("--order", choices=list(ORDERS), default="time", help="what comes first (default: the fastest)")
    parser.add_argument("--energy", action="store_true", help="measure energy too; --order energy does")
    parser.add_argument("--workspace-limit", type=size, metavar="SIZE", help="list those that need no more, as 64M")
    parser.add_argument("--deterministic", action="store_true", help="list those that give the same bits each time")
    parser.add_argument("--top", type=positive, metavar="N", help="lines a pass (default: all)")
    parser.add_argument("--json", type=output, metavar="FILE", help="write a record of all of them")
    parser.add_argument("--plot", type=output, metavar="FILE", help="draw time against workspace, or energy")
    args = parser.parse_args()
    for name in ("layer", "batch", "input", "dtype"):
        if not args.model and getattr(args, name) != parser.get_default(name):
            parser.error(f"--{name} goes with --model: a problem or a record has its own")
    return args


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """List, verify and time; returns the record."""
    named = wanted(args)
    if not torch.cuda.is_available():
        raise AutotuneError(
            "torch sees no NVIDIA GPU: cuDNN's algorithms are listed on one; --show prints a record without one"
        )
    device = torch.device("cuda:0")
    record: dict[str, Any] = {
        "schema": 1,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(device),
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
    """The convolutions to measure with their names; raises AutotuneError."""
    if args.model:
        return layers_of(args.model, args.layer, args.batch, args.input, args.dtype)
    problems = [parse(args.problem)] if args.problem else read_problems(args.problems)
    return [(str(problem), benchmark.passes(problem)[DIRECTIONS[0]]) for problem in problems]


def measure_layer(
    args: argparse.Namespace, name: str, problem: Convolution, device: torch.device, tell: Any
) -> dict[str, Any]:
    """A layer's entry in the record: all passes are listed before anything is run."""
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
    """The version of cuDNN's Python package, if it is there."""
    try:
        return cudnn.versions(device)["frontend"]
    except AutotuneError:
        return None


if __name__ == "__main__":
    run(main)
