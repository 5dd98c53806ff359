"""Runs `autotune bench`, whose options and description are in arguments/bench.py."""

from __future__ import annotations

import argparse
import copy
import gc
import hashlib
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

from autotune.core import AutotuneError, number, require_one_of
from autotune.core.device_turn import turn
from autotune.ir import DTYPES
from autotune_cli import chart, models, timing
from autotune_cli.baselines import (
    TURN_SECONDS,
    VARIANTS,
    BaselineInput,
    Forward,
    Variant,
    eager,
    flat,
    from_another,
    fused_full,
    tensors,
)
from autotune_cli.command_line import default_batch, torch_device
from autotune_cli.models import Model
from autotune_cli.record import one_line, provenance, slug, write
from autotune_cli.training_steps import STEPS, gradients
from autotune_cli.training_steps import eager as eager_step
from fused_resnet.networks import se_resnet9_fixup
from fused_resnet.precisions import FP8, INT8
from tuning_db import Store, location

TOLERANCE = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 5e-3}  # f32 may mean TF32 on a GPU
AS_TORCH = 2.0
"""A variant's error may be this many times that of eager torch. Folding batch norms rounds the weights once more: of
MobileNetV2 in float16 torch.compile with freezing has 1.6 times the error of eager torch at batch 1."""
BYTE_TOLERANCE = {INT8: 0.15, FP8: 0.5}
"""Precision -> largest error. It finds wrong results only; `autotune accuracy` measures the loss of accuracy."""
METHOD = {
    "unit": "microseconds",
    "stream": "mean of a burst of back-to-back calls; device events on a GPU, host clock on a CPU; a sample is a burst",
    "latency": "one call between two device synchronizations, host clock",
    "spread": "median, and low and high: the 10th and 90th percentile",
    "sm_mhz": "the GPU's clock in MHz at the end of each burst",
    "ratio": "a variant's time over fused's: median over rounds of the ratio in one round, low and high: 95 % interval",
    "caches": "warm: the same input again and again",
    "input": "lies in the variant's layout; every copy of it into a CUDA graph's static buffer is in the time",
    "settings": "eval, inference_mode, cudnn.benchmark; torch.compile: reduce-overhead on a GPU, default on a CPU; "
    "compile_frozen and max-autotune: with freezing",
    "error": "norm(result - reference) / norm(reference), the reference in float32 without TF32, for results in "
    "float32 in float64; all parameters random",
}
STEP_METHOD = {
    "settings": "training mode, forward and backward of all parameters without an optimizer, cudnn.benchmark; loss: "
    "sum of squares of the results over the batch size",
    "error": "norm(gradients - reference) / norm(reference) over all parameters together, the reference in float32 "
    "without TF32, for gradients in float32 in float64; all parameters random",
}
"""The entries that replace those of METHOD in a record of --train."""
PREPARED = "prepared: waiting for a line on standard input"
"""Line that --pause prints when the variants that read no database are prepared."""
REFERENCE_IMAGES = 8  # of a batch at a time, so that float32 activations of large images fit into the memory
OPTIONAL = ("compile_frozen", "compile_max", "untuned", "fused_full")  # variants that only --only or an option runs
PLACES = ("db", "against", "out", "show", "started")  # arguments that name files, and are not part of a result


@dataclass(frozen=True)
class Result:
    """The outcome of a variant: the times, or the `reason` why it did not run."""

    variant: Variant
    reason: str | None = None
    forward: Forward | None = None
    error: float = 0.0
    setup_seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    stream: timing.Spread | None = None
    latency: timing.Spread | None = None
    stream_ratio: timing.Ratio | None = None
    latency_ratio: timing.Ratio | None = None
    sm_mhz: timing.Spread | None = None


def main(arguments: argparse.Namespace) -> None:
    if arguments.show:
        plot(arguments.show)
        return
    if arguments.threads:
        os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # for kernels that bring an OpenMP runtime of their own
        torch.set_num_threads(arguments.threads)
    device = torch_device(arguments.device)
    arguments.batch = list(dict.fromkeys(arguments.batch or [default_batch(device.type == "cuda")]))
    dtype = arguments.dtype or models.default_dtype(device, arguments.precision)
    chosen = pick_variants(arguments, device)
    model = models.load(arguments.model, arguments.input, arguments.in_channels)
    database = None if arguments.pause else pick_database(arguments, chosen)
    torch.backends.cudnn.benchmark = True

    record: dict[str, Any] = {
        **provenance(device, arguments.out),
        "arguments": {key: value for key, value in vars(arguments).items() if key not in PLACES}
        | {"dtype": dtype, "device": device.type, "variants": [variant.name for variant in chosen]},
        "database": database,
        "against": [entry(path) for path in arguments.against],
        "method": METHOD | (STEP_METHOD if arguments.train else {}),
        "batches": [],
    }
    mode = ("-train-amp" if arguments.amp else "-train") if arguments.train else ""
    path = arguments.out or Path(f"{default_name(model.name, device, arguments.precision or dtype)}{mode}.json")
    ran = False
    for batch in arguments.batch:
        pause = arguments.pause and batch == arguments.batch[0]
        case = make_case(model, arguments, batch, device, DTYPES[dtype])
        with torch.autograd.set_multithreading_enabled(not arguments.one_thread):
            results = measure(case, chosen, arguments.seconds, wait_for_a_line if pause else lambda: None)
        record["database"] = record["database"] or pick_database(arguments, chosen)
        ran |= any(result.reason is None for result in results)
        record["batches"].append({"batch": batch, "variants": {r.variant.name: as_json(r) for r in results}})
        write(record, path)  # after every batch size: an interrupted run keeps what it measured
        kind = f"{model.name}, training step" if arguments.train else model.name
        kind += ", backward in the calling thread" if arguments.one_thread else ""
        show(results, f"{kind}, {arguments.precision or dtype}, batch {batch}, {record['machine']['device']}")
    print(f"wrote {path}")
    if not ran:
        raise AutotuneError("no variant ran: the reasons stand below each table")
    plot(path)


def pick_variants(arguments: argparse.Namespace, device: torch.device) -> list[Variant]:
    all_variants = STEPS if arguments.train else VARIANTS
    known = [variant.name for variant in all_variants]
    if arguments.amp and not arguments.train:
        raise AutotuneError("--amp is for --train: inference runs in --dtype")
    if arguments.one_thread and not arguments.train:
        raise AutotuneError("--one-thread is for --train: inference has no backward pass")
    if arguments.train and (arguments.against or arguments.precision):
        raise AutotuneError("--against and --precision are for inference, not for --train")
    for name in arguments.only + arguments.skip:
        require_one_of("variant", name, known)
    wanted = set(arguments.only or [name for name in known if name not in OPTIONAL]) - set(arguments.skip)
    if arguments.max_autotune:
        wanted.add("compile_max")
    chosen = [v for v in all_variants if v.name in wanted and (device.type == "cuda" or not v.gpu_only)]
    chosen += [from_another(path) for path in arguments.against]
    if len({variant.name for variant in chosen}) < len(chosen):
        raise AutotuneError("--against: databases are distinguished by their file names, and two have the same name")
    if not chosen:
        raise AutotuneError(f"no variant is left to run on {device.type}: change --only or --skip")
    return chosen


def pick_database(arguments: argparse.Namespace, chosen: Iterable[Variant]) -> dict[str, Any] | None:
    """Return the database's entry in the record; None if no variant needs a database."""
    if all(variant.name != "fused" for variant in chosen):
        return None
    if not arguments.db:
        raise AutotuneError("the variant fused needs a tuning database: give --db PATH or --skip fused")
    return entry(Path(arguments.db))


def entry(path: Path) -> dict[str, Any]:
    """Return the entry of a database in a record, with the digests of its plans; raises DatabaseError if it is none."""
    location.check(path)
    with Store.open(path) as store:
        plans = {plan.network: plan.digest for plan in store.plans()}
    return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "plans": plans}


def make_case(
    model: Model, arguments: argparse.Namespace, batch: int, device: torch.device, dtype: torch.dtype
) -> BaselineInput:
    """Return random weights, a random input, and their result in float32 on the CPU."""
    torch.compiler.reset()  # so that torch.compile specializes for this batch size
    generator = torch.Generator().manual_seed(1)
    se_resnet9_fixup.randomize(model.module, 0)
    se_resnet9_fixup.calibrate(model.module, torch.randn(8, *model.shape, generator=generator))
    x = torch.randn(batch, *model.shape, generator=generator).to(device, dtype)
    if not arguments.train:
        return BaselineInput(model, arguments.db or "", arguments.precision, x, reference(model.module, x))
    amp = dtype if arguments.amp else None
    expected = gradients(model.module, x)
    given = x.float() if amp else x
    return BaselineInput(model, arguments.db or "", None, given, expected, train=True, amp=amp)


def reference(module: nn.Module, x: Tensor) -> Tensor:
    """Return the network's results in float32 without TF32, for an input in float32 in float64.

    They are computed on the input's device, a few images at a time if each result has one row for each image.
    """
    dtype = torch.float64 if x.dtype == torch.float32 else torch.float32
    exact = copy.deepcopy(module).to(x.device, dtype)
    with torch.inference_mode(), torch.backends.cudnn.flags(allow_tf32=False):
        parts = x.split(REFERENCE_IMAGES)
        results = [tensors(exact(part.to(dtype))) for part in parts]
        if len(parts) == 1:
            return flat(results)
        if all(one.shape[:1] == part.shape[:1] for part, ones in zip(parts, results, strict=True) for one in ones):
            return flat([torch.cat(pieces) for pieces in zip(*results, strict=True)])
        return flat(exact(x.to(dtype)))


def wait_for_a_line() -> None:
    """Print PREPARED and wait for a line; raises AutotuneError if input ends: the process that would write is gone."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # for the process that this one waits for
    print(PREPARED, flush=True)
    if not sys.stdin.readline():
        raise AutotuneError("standard input ended while --pause waited for a line")


def measure(
    case: BaselineInput, chosen: list[Variant], budget: float, before_databases: Callable[[], None]
) -> list[Result]:
    """Prepare every variant, then time all that work in interleaved rounds.

    Args:
        case: The network and its input.
        chosen: The variants; those that read a database come last.
        budget: Seconds for each variant.
        before_databases: Called before the first variant that reads a database is prepared.
    """
    text = TextColumn("{task.description}")
    with Progress(text, BarColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(chosen))
        first = [variant for variant in chosen if not variant.reads_database]
        results = [prepare(case, variant, progress, task) for variant in first]
        before_databases()
        results += [prepare(case, variant, progress, task) for variant in chosen[len(first) :]]
        calls = {result.variant.name: result.forward for result in results if result.forward}
        if not calls:
            return results
        progress.reset(task, total=1, description=f"timing {len(calls)} variants, batch {len(case.x)}")
        try:
            with case.context(), turn(case.device, TURN_SECONDS), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they were recorded while each variant was prepared
                times = timing.interleave(calls, case.device, budget, lambda f: progress.update(task, completed=f))
        except Exception as problem:  # after an error of the CUDA context every later call fails
            return [r if r.reason else Result(r.variant, f"while timing: {one_line(problem)}") for r in results]
    return [with_times(result, times) if result.forward else result for result in results]


def is_right(case: BaselineInput, variant: Variant, error: float) -> bool:
    """Return whether an error is within the tolerance of the dtype, or within AS_TORCH times that of eager torch."""
    if variant.is_fused and variant.build is not fused_full and case.precision in BYTE_TOLERANCE:
        return error < BYTE_TOLERANCE[case.precision]
    if error < TOLERANCE[case.amp or case.x.dtype]:
        return True
    with case.context():
        plain = eager_step(case) if case.train else eager(case)
        return error < AS_TORCH * relative_error(flat(plain()), case.expected)


def prepare(case: BaselineInput, variant: Variant, progress: Progress, task: TaskID) -> Result:
    """Build, check and warm up one variant; an error becomes the variant's result."""
    progress.update(task, description=f"preparing {variant.name}, batch {len(case.x)}")
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            forward = variant.build(case)
            with case.context():
                error = relative_error(flat(forward()), case.expected)
                timing.warm_up(forward, case.device)
        right = is_right(case, variant, error)
    except Exception as problem:  # compilers and kernels raise anything
        return Result(variant, one_line(problem))
    finally:
        progress.advance(task)
        gc.collect()
    if not right:
        return Result(variant, f"wrong result: relative error {error:.1e}")
    said = dict.fromkeys(one_line(w.message) for w in caught if issubclass(w.category, UserWarning))
    return Result(variant, None, forward, error, time.perf_counter() - start, tuple(said))


def with_times(result: Result, times: dict[str, timing.Samples]) -> Result:
    """Return the result with its statistics, and with ratios if the variant fused ran."""
    own, fused_times = times[result.variant.name], times.get("fused")
    calls = [call for latencies in own.latency for call in latencies]
    result = replace(result, stream=timing.spread(own.stream), latency=timing.spread(calls))
    if len(own.sm_mhz) > 1:
        result = replace(result, sm_mhz=timing.spread(own.sm_mhz))
    if fused_times is None:
        return result
    return replace(
        result,
        stream_ratio=timing.paired_ratio(own.stream, fused_times.stream),
        latency_ratio=timing.paired_ratio(medians(own.latency), medians(fused_times.latency)),
    )


def medians(rounds: list[list[float]]) -> list[float]:
    return [statistics.median(values) for values in rounds]


def relative_error(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).norm() / expected.norm())


def as_json(result: Result) -> dict[str, Any]:
    variant = result.variant
    about = {"label": variant.label, "layout": variant.layout}
    if result.reason is not None:
        return {"status": "failed", "reason": result.reason} | about
    numbers = asdict(replace(result, forward=None))
    return {"status": "ok"} | about | {k: v for k, v in numbers.items() if k not in ("variant", "reason", "forward")}


def default_name(model: str, device: torch.device, dtype: str) -> str:
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{model}-{slug(place)}-{dtype}"


def plot(path: Path) -> None:
    """Draw the chart of the record at `path`, beside it."""
    try:
        picture = path.with_name(f"{path.stem}.png")
        chart.draw(json.loads(path.read_text()), picture)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise AutotuneError(f"'{path}' is not a record of `autotune bench`: {one_line(problem)}") from problem
    except ImportError as problem:
        raise AutotuneError(f"drawing needs matplotlib: install it, then run autotune bench --show {path}") from problem
    Console().print(f"wrote {picture}", highlight=False)


def show(results: list[Result], title: str) -> None:
    """Print the table, fastest variant first, then the failures and the warnings of FusedResNet."""
    ran = sorted((r for r in results if r.latency), key=lambda r: cast(timing.Spread, r.latency).median)
    unit, scale = chart.unit([s.median for r in ran for s in (r.stream, r.latency) if s])
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("variant")  # the one that may wrap, for the names of databases
    for heading in (f"stream {unit}", f"latency {unit}", "stream/fused", "latency/fused", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for r in ran:
        numbers = [spread_text(r.stream, scale), spread_text(r.latency, scale)]
        numbers += [ratio_text(r.stream_ratio), ratio_text(r.latency_ratio), f"{r.error:.0e}"]
        table.add_row(r.variant.name, *numbers, style="bold" if r.variant.name == "fused" else None)
    console = Console(highlight=False)
    console.print(f"\n[italic]{escape(title)}[/]")
    if ran:
        console.print(table)
    if clocks := [f"{r.variant.name} {r.sm_mhz.median:.0f}" for r in ran if r.sm_mhz]:
        console.print(f"GPU clock in MHz: {', '.join(clocks)}")
    for r in results:
        if r.reason is not None:
            console.print(f"[red]{r.variant.name} failed:[/] {escape(r.reason)}")
        elif r.variant.is_fused:
            for text in r.warnings:
                console.print(f"[yellow]{r.variant.name} warns:[/] {escape(text)}")


def spread_text(value: timing.Spread | None, scale: float) -> str:
    """Return the median and, in percent of it, half the distance from the 10th to the 90th percentile."""
    if value is None:
        return ""
    return f"{number(value.median / scale)} ±{50 * (value.high - value.low) / value.median:.0f}%"


def ratio_text(value: timing.Ratio | None) -> str:
    """Return the ratio and its confidence interval."""
    if value is None:
        return ""
    return f"{number(value.median)} ({number(value.low)}-{number(value.high)})"
