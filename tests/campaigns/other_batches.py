"""Run kernels that were tuned for one batch size on problems of other ones.

A batch size that was not tuned runs on the kernels of another one, with the
launch values that were the fastest there. A tune starts with such kernels too.
For each problem of the database, the fastest kernels of all its batch sizes
are verified, as a tune verifies them, at all these sizes and at those of
--batch. A kernel may refuse a problem; a result that is not right is an error
of the kernel. The exit code is 1 if there is one.

Examples:
  python tests/campaigns/other_batches.py --db a.db
  python tests/campaigns/other_batches.py --db a.db --like gemm --batch 1,5
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from pathlib import Path

import torch

from autotune.core import AutotuneError, device_target, runs_on
from autotune.ir import Problem, parse, with_batch
from autotune.ir.operators import TorchCall
from autotune.measure import CandidateBench
from autotune.runtime import Candidate, candidate, shortlist, usable_devices
from autotune_cli.command_line import add_device, positive, seconds, sizes, torch_device
from autotune_cli.main import run_program
from tuning_db import open_reader
from tuning_db.protocols import Database

FASTEST = 6
"""Number of the fastest kernels of each problem that are tried."""

Tuned = dict[int, list[Candidate]]
"""Batch size -> the fastest kernels for it."""


def tuned(store: Database, device: torch.device, like: str) -> dict[Problem, Tuned]:
    """Return the fastest kernels of each problem whose text contains `like`.

    Args:
        store: The database.
        device: The device that runs them.
        like: Part of the texts.

    Returns:
        The problem for batch size 1 -> its kernels.
    """
    found: dict[Problem, Tuned] = {}
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
                by_batch = found.setdefault(with_batch(problem, 1), {})
                by_batch[problem.batch] = [*by_batch.get(problem.batch, ()), *kernels]
    return found


def check(problem: Problem, kernels: Tuned, device: torch.device, counts: Counter[str]) -> None:
    """Verify the kernels of other batch sizes on a problem, count the results, and print those that are wrong."""
    others = {str(kernel): (n, kernel) for n, each in kernels.items() if n != problem.batch for kernel in each}
    if not others:
        return
    bench = CandidateBench(problem, device)
    for n, kernel in others.values():
        result = bench.check_candidate(kernel)
        counts[result.status] += 1
        if result.status not in ("ok", "refused"):
            print(f"{result.status}: {kernel}, tuned for batch {n}\n  {problem}\n  {result.error}", flush=True)
        if bench.corrupted_inputs:
            bench = CandidateBench(problem, device)


# -- the command -------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the tuning database")
    parser.add_argument("--like", default="", metavar="TEXT", help="only problems whose text contains this")
    parser.add_argument(
        "--batch", type=sizes, default="3,33", metavar="N[,N]", help="further batch sizes (default %(default)s)"
    )
    parser.add_argument("--seconds", type=seconds, default=math.inf, metavar="TIME", help="end after this time")
    parser.add_argument("--seed", type=positive, default=1, metavar="S", help="seed of the order (default 1)")
    add_device(parser)


def main(options: argparse.Namespace) -> int:
    end = time.monotonic() + options.seconds
    device = torch_device(options.device)
    counts: Counter[str] = Counter()
    num_problems = 0
    with open_reader(options.db) as store:
        found = list(tuned(store, device, options.like).items())
        random.Random(options.seed).shuffle(found)
        for problem, kernels in found:
            for batch in sorted({*kernels, *options.batch}):
                if time.monotonic() < end:
                    check(with_batch(problem, batch), kernels, device, counts)
                    num_problems += 1
    wrong = sum(count for status, count in counts.items() if status not in ("ok", "refused"))
    print(f"{num_problems} problems, {counts['ok']} kernels right, {counts['refused']} refused, {wrong} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
