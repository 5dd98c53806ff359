"""Run kernels that were tuned for one size on problems of other ones.

A batch size or image size that was not tuned runs on the kernels of another
one, with the launch values that were the fastest there. A tune starts with
such kernels too. For each problem of the database, the fastest kernels of all
its sizes are verified, as a tune verifies them, at all these sizes, at those
of --batch and at random image sizes. A kernel may refuse a problem; a result
that is not right is an error of the kernel. The exit code is 1 if there is one.

Examples:
  python tests/campaigns/other_sizes.py --db a.db
  python tests/campaigns/other_sizes.py --db a.db --like gemm --batch 1,5
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from autotune.core import AutotuneError, ProblemError, device_target, runs_on
from autotune.ir import Problem, parse, size_class, with_batch
from autotune.ir.operators import TorchCall
from autotune.measure import CandidateBench
from autotune.runtime import Candidate, candidate, shortlist, usable_devices
from autotune_cli.command_line import add_device, positive, seconds, sizes, torch_device
from autotune_cli.main import run_program
from tuning_db import open_reader
from tuning_db.protocols import Database

FASTEST = 6
"""Number of the fastest kernels of each problem that are tried."""

Tuned = dict[Problem, list[Candidate]]
"""Problems that differ in their sizes alone -> the fastest kernels of each."""


def tuned(store: Database, device: torch.device, like: str) -> dict[str, Tuned]:
    """Return the fastest kernels of each problem whose text contains `like`, by the problem without its sizes.

    Args:
        store: The database.
        device: The device that runs them.
        like: Part of the texts.
    """
    found: dict[str, Tuned] = {}
    for text in store.problem_texts():
        if like not in text or text.startswith(f"{TorchCall.operator} "):  # calls are not read from text
            continue
        try:
            problem = parse(text)
        except AutotuneError:  # an operator that this version does not have
            continue
        for row, _ in usable_devices(store, device):
            kernels = [
                candidate(store, measured.kernel, measured.launch)
                for measured in shortlist(store.ranking(row, text), FASTEST, 0)
                if measured.kernel.library and runs_on(measured.kernel.library.target, device_target(device))
            ]
            if kernels:
                alike = found.setdefault(size_class(text), {})
                alike[problem] = [*alike.get(problem, ()), *kernels]
    return found


def sized(kernels: Tuned, batches: list[int], images: int, rng: random.Random) -> Iterator[Problem]:
    """Yield tuned problems and the same at other batch sizes, then some with images of random sizes."""
    same = {with_batch(problem, n) for problem in kernels for n in (*batches, *(one.batch for one in kernels))}
    yield from sorted(same, key=str)
    for _ in range(images):
        problem = rng.choice(list(kernels))
        if "h" in problem.size_fields:
            sides: Any = {name: rng.randint(1, 2 * getattr(problem, name)) for name in ("h", "w")}
            try:
                yield replace(problem, **sides)
            except ProblemError:  # a window that is larger than the image, or other sizes that belong to these
                continue


def check(problem: Problem, kernels: Tuned, device: torch.device, counts: Counter[str]) -> None:
    """Verify the kernels of other sizes on a problem, count the results, and print those that are wrong."""
    others = {str(one): (tuned_for, one) for tuned_for, each in kernels.items() if tuned_for != problem for one in each}
    if not others:
        return
    bench = CandidateBench(problem, device)
    for tuned_for, kernel in others.values():
        result = bench.check_candidate(kernel)
        counts[result.status] += 1
        if result.status not in ("ok", "refused"):
            print(f"{result.status}: {kernel}\n  {problem}\n  tuned for {tuned_for}\n  {result.error}", flush=True)
        if bench.corrupted_inputs:
            bench = CandidateBench(problem, device)


# -- the command -------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the tuning database")
    parser.add_argument("--like", default="", metavar="TEXT", help="only problems whose text contains this")
    parser.add_argument(
        "--batch", type=sizes, default="3,33", metavar="N[,N]", help="further batch sizes (default %(default)s)"
    )
    parser.add_argument(
        "--images",
        type=positive,
        default=2,
        metavar="N",
        help="random image sizes of each problem (default %(default)s)",
    )
    parser.add_argument("--seconds", type=seconds, default=math.inf, metavar="TIME", help="end after this time")
    parser.add_argument(
        "--seed", type=positive, default=1, metavar="S", help="seed of order and image sizes (default 1)"
    )
    add_device(parser)


def main(options: argparse.Namespace) -> int:
    end = time.monotonic() + options.seconds
    device = torch_device(options.device)
    counts: Counter[str] = Counter()
    num_problems = 0
    with open_reader(options.db) as store:
        found = list(tuned(store, device, options.like).values())
        rng = random.Random(options.seed)
        rng.shuffle(found)
        for kernels in found:
            for problem in sized(kernels, options.batch, options.images, rng):
                if time.monotonic() < end:
                    check(problem, kernels, device, counts)
                    num_problems += 1
    wrong = sum(count for status, count in counts.items() if status not in ("ok", "refused"))
    print(f"{num_problems} problems, {counts['ok']} kernels right, {counts['refused']} refused, {wrong} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
