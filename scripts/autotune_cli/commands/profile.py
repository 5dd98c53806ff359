"""Runs `autotune profile`, whose options and description are in arguments/profile.py."""

from __future__ import annotations

import argparse
import os
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # read when torch is loaded

import torch
from rich.console import Console
from rich.markup import escape

from autotune.core import AutotuneError, UnknownNameError, chrome_trace, flop_unit, measure_device
from autotune.ir import DTYPES
from autotune.profiling import (
    Node,
    Profile,
    as_json,
    attribution,
    match_modules,
    match_paths,
    record,
    totals,
    with_lanes,
)
from autotune.profiling.summary import libraries
from autotune.profiling.tree import tree
from autotune_cli.command_line import default_batch
from autotune_cli.models import Model, default_dtype, load
from autotune_cli.profiles import page, report
from autotune_cli.record import one_line, provenance, write
from fused_resnet.profile_subject import of_fused

RUN_ONLY = ("input", "in_channels", "dtype", "channels_last", "cudnn", "compile", "db", "precision")
"""Options that only a run uses, and that are empty by default."""


def main(arguments: argparse.Namespace) -> None:
    check_options(arguments)
    traces = [read_trace(path) for path in arguments.from_traces or []] or make_traces(arguments)
    profiles = [(profile, tree(profile)) for profile in map(attribution.read, traces)]
    if arguments.trace:
        for path, trace, (profile, _) in zip(trace_paths(arguments.trace), traces, profiles, strict=False):
            chrome_trace.save(with_lanes(trace, profile), path)
    if arguments.json:
        write({"profiles": [as_json(profile, root) for profile, root in profiles]}, arguments.json)
    if arguments.html:
        page.write(profiles, arguments.html)
    show(profiles, arguments)


def check_options(arguments: argparse.Namespace) -> None:
    """Raise AutotuneError for options that do not go together."""
    if len(arguments.from_traces or []) > 2:
        raise AutotuneError("--from takes one trace, or two to show side by side")
    if arguments.from_traces and (ignored := [name for name in RUN_ONLY if getattr(arguments, name)]):
        options = ", ".join("--" + name.replace("_", "-") for name in ignored)
        raise AutotuneError(f"--from shows recorded traces and runs nothing: leave out {options}")
    if arguments.precision and not arguments.db:
        raise AutotuneError("--precision is for FusedResNet: give --db FILE, its database, too")
    if arguments.layer and arguments.compile:
        raise AutotuneError("--layer finds nothing with --compile: torch.compile leaves one module, the whole network")


def trace_paths(path: Path) -> tuple[Path, Path]:
    """Return the files of the traces of the network and of its FusedResNet."""
    stem, dot, suffixes = path.name.partition(".")
    return path, path.with_name(f"{stem}-fused{dot}{suffixes}")


def read_trace(path: str) -> dict[str, Any]:
    try:
        return chrome_trace.load(Path(path))
    except (OSError, ValueError, EOFError, zlib.error) as problem:
        raise AutotuneError(f"'{path}' is not a trace: {one_line(problem)}") from problem


def make_traces(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a trace of the network, and with --db one of its FusedResNet."""
    device = pick_device(arguments)
    model = load(arguments.model, arguments.input, arguments.in_channels)
    match_paths(
        [path for path, _ in model.module.named_modules()], arguments.layer or "*"
    )  # now, not once all is measured
    dtype = DTYPES[arguments.dtype or default_dtype(device, arguments.precision)]
    arguments.batch = arguments.batch or default_batch(device.type == "cuda")
    x = torch.randn(arguments.batch, *model.shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    fused = model.fused_for(x, arguments.db, arguments.precision) if arguments.db else None
    layout = torch.channels_last if arguments.channels_last else torch.contiguous_format
    placed: Any = model.module.requires_grad_(False)  # Any: torch's stubs lack memory_format
    placed.to(device, dtype, memory_format=layout)
    given = x.contiguous(memory_format=layout)
    model.call(given)
    facts = measure_device(device)
    about = {
        "model": arguments.model,
        "input": list(x.shape),
        "dtype": str(dtype).removeprefix("torch."),
        "channels_last": arguments.channels_last,
        "cudnn": torch.backends.cudnn.enabled,
        **{key: value for key, value in provenance(device).items() if key != "schema"},
        "limits": {"flops_per_us": facts.flops_per_us, "bytes_per_us": facts.bytes_per_us},
    }

    def traced(
        variant: str, make: Callable[..., record.Subject], *of: Any, precision: str | None = None
    ) -> dict[str, Any]:
        with warnings.catch_warnings(record=True) as caught:
            subject = make(*of)
        said = [one_line(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
        more = {"variant": variant, "precision": precision, "warnings": said}
        return record.record(subject, device, arguments.calls, {**about, **more})

    if arguments.compile:
        traces = [traced("torch.compile", compiled, model, given)]
    else:
        traces = [traced("eager", record.of_module, model.module, given)]
    if fused:
        traces.append(traced("FusedResNet", of_fused, fused, x, precision=arguments.precision))
    return traces


def pick_device(arguments: argparse.Namespace) -> torch.device:
    """Return the device, and switch cuDNN on or off."""
    device = torch.device("cuda" if arguments.device != "cpu" and torch.cuda.is_available() else "cpu")
    if device.type != "cuda" and (arguments.cudnn or arguments.device == "cuda"):
        why = "--device cpu was given" if torch.cuda.is_available() else "torch sees no NVIDIA GPU"
        raise AutotuneError(f"{why}: leave --cudnn and --device cuda out to profile the CPU")
    if arguments.cudnn == "on" and not torch.backends.cudnn.is_available():
        raise AutotuneError("this torch was built without cuDNN: leave --cudnn out, or install one that has it")
    torch.backends.cudnn.enabled = arguments.cudnn != "off"
    return device


def compiled(model: Model, x: torch.Tensor) -> record.Subject:
    subject = record.of_compiled(model.module, x)
    try:
        with torch.inference_mode():
            subject.call()
    except Exception as problem:  # compilers raise anything
        raise AutotuneError(f"torch.compile cannot compile {model.name}: {one_line(problem)}") from problem
    return subject


def show(profiles: Sequence[tuple[Profile, Node]], arguments: argparse.Namespace) -> None:
    console = Console(highlight=False)
    for profile, root in profiles:
        about = dict(profile.about)
        where = "GPU" if about["device_type"] == "cuda" else "CPU"
        sums = totals(profile)
        roots = chosen(root, arguments.layer, root is profiles[0][1])
        console.print(f"\n[italic]{escape(report.heading(about))}[/]\n")
        for text in about.get("warnings", []):
            console.print(f"[yellow]{about['variant']} warns:[/] {escape(text)}\n")
        unit = flop_unit(about["limits"]["flops_per_us"])
        report.show_tree(console, roots, sums.total_us, arguments.depth, where, unit)
        console.print()
        report.show_libraries(console, libraries(root), sums.total_us)
        console.print()
        report.show_totals(console, sums, where)
    if len(profiles) == 2:
        (before, left), (after, right) = profiles
        console.print()
        report.show_both(console, left, right, (before.about["variant"], after.about["variant"]))


def chosen(root: Node, pattern: str | None, needed: bool) -> list[Node]:
    """Return the modules to show; a pattern need not match in FusedResNet, where layers are fused."""
    try:
        return match_modules(root, pattern) if pattern else [root]
    except UnknownNameError:
        if needed:
            raise
        return []
