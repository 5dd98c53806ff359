"""The command line of profile.py."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # read when torch is loaded

import _profile_page
import _profile_report as report
import torch
from _cli import positive
from _models import HELP, input_size, load_model
from _record import machine, one_line, write
from rich.console import Console
from rich.markup import escape
from torch import nn

from autotune.device import measure_device
from autotune.errors import AutotuneError, UnknownNameError
from autotune.problem import DTYPES
from autotune.profiling import attribution, record
from autotune.profiling.attribution import Profile
from autotune.profiling.fused import of_fused
from autotune.profiling.summary import as_json, libraries, totals
from autotune.profiling.tree import Node, matching, tree
from fused_resnet import FusedResNet


def main() -> None:
    """Run the command line."""
    arguments = parse()
    traces = [read_trace(path) for path in arguments.from_traces or []] or make_traces(arguments)
    if arguments.trace:
        for path, trace in zip(trace_paths(Path(arguments.trace)), traces, strict=False):
            record.save(trace, path)
    profiles = [(profile, tree(profile)) for profile in map(attribution.read, traces)]
    if arguments.json:
        write({"profiles": [as_json(profile, root) for profile, root in profiles]}, Path(arguments.json))
    if arguments.html:
        _profile_page.write(profiles, Path(arguments.html))
    show(profiles, arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="profile.py", description="What runs beneath each layer of a network: module, operators, kernels."
    )
    parser.add_argument("--model", default="se_resnet9_fixup", help=HELP)
    parser.add_argument("--input", type=shape, metavar="C,H,W", help="shape of a sample (default: the network's usual)")
    parser.add_argument("--batch", type=positive, default=32, metavar="N", help="samples a call (default: 32)")
    parser.add_argument("--dtype", choices=["f16", "bf16", "f32"], help="default: f16 on a GPU, f32 on a CPU")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--channels-last", action="store_true", help="weights and input channels last in memory")
    parser.add_argument("--cudnn", choices=["on", "off"], help="whether torch may use cuDNN (default: on)")
    parser.add_argument("--compile", action="store_true", help="profile what torch.compile makes of the network")
    parser.add_argument("--db", metavar="FILE", help="also FusedResNet on this tuning database, side by side")
    parser.add_argument("--calls", type=positive, default=4, metavar="N", help="calls that are averaged (default: 4)")
    parser.add_argument("--layer", metavar="PATTERN", help="show only modules whose path matches, such as 'layer1.*'")
    parser.add_argument("--depth", type=positive, metavar="N", help="levels of modules to show (default: all)")
    parser.add_argument("--json", metavar="F", help="write all that is known of it as JSON")
    parser.add_argument("--html", metavar="F", help="write a page with the tree, which needs no network")
    parser.add_argument("--trace", metavar="F", help="write the Chrome trace, for Perfetto; .gz compresses")
    parser.add_argument(
        "--from", dest="from_traces", nargs="+", metavar="F", help="show traces of --trace instead of running anything"
    )
    return parser.parse_args()


def shape(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(","))


def trace_paths(path: Path) -> tuple[Path, Path]:
    """Where the traces of the network and of its FusedResNet go."""
    stem, dot, suffixes = path.name.partition(".")
    return path, path.with_name(f"{stem}-fused{dot}{suffixes}")


def read_trace(path: str) -> dict[str, Any]:
    try:
        return record.load(Path(path))
    except (OSError, ValueError, EOFError) as problem:
        raise AutotuneError(f"'{path}' is not a trace: {one_line(problem)}") from problem


def make_traces(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A trace of the network, and with --db one of its FusedResNet."""
    device = torch.device("cuda" if arguments.device != "cpu" and torch.cuda.is_available() else "cpu")
    if device.type != "cuda" and (arguments.cudnn or arguments.device == "cuda"):
        why = "--device cpu was given" if torch.cuda.is_available() else "torch sees no NVIDIA GPU"
        raise AutotuneError(f"{why}: leave --cudnn and --device cuda out to profile the CPU")
    dtype = DTYPES[arguments.dtype or ("f16" if device.type == "cuda" else "f32")]
    torch.backends.cudnn.enabled = arguments.cudnn != "off"
    channels = arguments.input[0] if arguments.input else 3
    model: Any = load_model(arguments.model, channels).requires_grad_(False)
    size = arguments.input or input_size(arguments.model, model)
    fused = FusedResNet(arguments.db, model=arguments.model, in_channels=channels) if arguments.db else None
    x = torch.randn(arguments.batch, *size, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    facts = measure_device(device)
    about = {
        "model": arguments.model,
        "input": [arguments.batch, *size],
        "dtype": str(dtype).removeprefix("torch."),
        "channels_last": arguments.channels_last,
        "cudnn": torch.backends.cudnn.enabled,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(device),
        "limits": {"flops_per_us": facts.flops_per_us, "bytes_per_us": facts.bytes_per_us},
    }

    def traced(variant: str, subject: record.Subject) -> dict[str, Any]:
        return record.record(subject, device, arguments.calls, {**about, "variant": variant})

    layout = torch.channels_last if arguments.channels_last else torch.contiguous_format
    placed: nn.Module = model.to(device, dtype, memory_format=layout)
    given = x.contiguous(memory_format=layout)
    if arguments.compile:
        traces = [traced("torch.compile", record.of_compiled(placed, given))]
    else:
        traces = [traced("eager", record.of_module(placed, given))]
    if fused:
        fused.load_state_dict(model.state_dict())
        traces.append(traced("FusedResNet", of_fused(fused.to(device, dtype), x)))
    return traces


def show(profiles: Sequence[tuple[Profile, Node]], arguments: argparse.Namespace) -> None:
    console = Console(highlight=False)
    for profile, root in profiles:
        about = dict(profile.about)
        where = "GPU" if about["device_type"] == "cuda" else "CPU"
        sums = totals(profile)
        roots = chosen(root, arguments.layer, root is profiles[0][1])
        console.print(f"\n[italic]{escape(report.heading(about))}[/]\n")
        report.show_tree(console, roots, sums.total_us, arguments.depth, where)
        console.print()
        report.show_libraries(console, libraries(root), sums.total_us)
        console.print()
        report.show_totals(console, sums, where)
    if len(profiles) == 2:
        (before, left), (after, right) = profiles
        console.print()
        report.show_both(console, left, right, (before.about["variant"], after.about["variant"]))


def chosen(root: Node, pattern: str | None, needed: bool) -> list[Node]:
    """The modules to show. Those of FusedResNet need not match: there a layer may be part of another."""
    try:
        return matching(root, pattern) if pattern else [root]
    except UnknownNameError:
        if needed:
            raise
        return []
