"""Runs `autotune bench-layers`, whose options and description are in arguments/bench_layers.py."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from autotune.core import AutotuneError, device_name
from autotune.libraries import cudnn
from autotune_cli.layers.comparison import CHOOSING_ROUNDS, FINALISTS, SLOW, Job
from autotune_cli.layers.known_sets import LAYERS
from autotune_cli.layers.layer_sets import layer_set, title
from autotune_cli.layers.process import ComparisonProcess
from autotune_cli.layers.report import draw, read, show, summary
from autotune_cli.record import provenance, slug, write
from tuning_db import Store

METHOD = {
    "unit": "microseconds",
    "time": "mean over a CUDA graph of many launches, between two events; median, 10th and 90th percentile over rounds",
    "ratio": "a side's time over ours: median over rounds of the ratio in one round, low and high: 95 % interval",
    "rounds": f"the best {FINALISTS} of each side run {CHOOSING_ROUNDS} rounds, and the best of those the rounds that "
    "count, all sides in each round in a new random order",
    "ours": "the best of our kernels that the tuning database has for the problem on this kind of GPU",
    "tuned": "the winner of the database: one of our kernels or, if cuDNN was tuned too, a plan of cuDNN",
    "cudnn": "the best of all plans of heuristics A, B and FALLBACK, with the bias in the problem's dtype or in f32",
    "first": "the first of these plans that runs: the choice of the heuristics",
    "cutlass2": "the best kernel of CUTLASS 2.x that the database has",
    "torch": "torch's fused operator, or its convolution and pointwise operators; channels_last, cudnn.benchmark",
    "slow": f"a candidate slower than {SLOW} x the best so far runs once and is not timed further",
    "caches": "warm: the same operands again and again",
    "share": "the device's limit for the layer, by its measured rates, over the time",
    "checked": "random operands, poisoned and fenced outputs, against a float32 reference",
}


def main(args: argparse.Namespace) -> int:
    if args.show:
        known = read(args.show)
        show(known)
        draw(known, args.chart or args.show.with_suffix(".png"))
        return 0
    if not args.db:
        raise AutotuneError(f"our kernels come from a tuning database: give --db FILE, made with {advice(args.layers)}")
    path, problems = layer_set(args.layers, args.only)
    if not torch.cuda.is_available():
        raise AutotuneError("torch sees no NVIDIA GPU: layers are compared with cuDNN on one")
    Store.open(args.db).close()  # errors of the database come before the measurements
    device = torch.device("cuda:0")
    place = args.out or Path(f"layers-{path.stem}-{slug(device_name(device))}.json")
    record: dict[str, Any] = {
        **provenance(device, args.out),
        "cudnn": cudnn_versions(device),
        "database": {"file": args.db.name, "sha256": hashlib.sha256(args.db.read_bytes()).hexdigest()},
        "arguments": {"layers": path.stem, "only": args.only, "rounds": args.rounds},
        "method": METHOD,
        "layers": [],
    }
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with (
        ComparisonProcess(str(device)) as process,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        task = progress.add_task("", total=len(problems))
        for problem in problems:

            def tell(what: str, layer: str = title(problem)) -> None:
                progress.update(task, description=f"{layer}: {what}")

            record["layers"].append(process.measure(Job(problem, args.db, args.rounds), tell))
            record["summary"] = summary(record["layers"])
            write(record, place)  # after every layer: an interrupted run keeps what it measured
            progress.advance(task)
    show(record)
    if any("ours" in layer.get("missing", {}) for layer in record["layers"]):
        Console().print(f"Tune what is missing with: {advice(args.layers, args.db)}", highlight=False)
    Console().print(f"wrote {place}", highlight=False)
    draw(record, args.chart or place.with_suffix(".png"))
    return 0


def advice(layers: str, database: Path | str = "FILE") -> str:
    """Return the command that tunes a set of layers."""
    path = LAYERS / f"{layers}.txt"
    return f"autotune tune --problems {path if path.is_file() else layers} --db {database}"


def cudnn_versions(device: torch.device) -> dict[str, str]:
    """Return the versions of cuDNN and of its Python package, or the reason why its plans cannot be listed."""
    try:
        return cudnn.versions(device)
    except AutotuneError as problem:
        return {"reason": str(problem)}
