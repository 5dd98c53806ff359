"""Time FusedResNet of this checkout against another checkout of the project.

Each checkout runs in a process of its own, with its own engine and databases.
Samples alternate in random order, so that drifting clocks affect both alike.
Two processes of one checkout still differ, by up to 0.7 % on an H200: compare a
checkout with a copy of itself before you believe a smaller difference.
The exit code is 1 if this checkout is slower in a case by more than
--tolerance, with 95 % confidence.

Example:
  python tests/campaigns/compare_checkouts.py --other ../before
         --case se_resnet9_fixup,128,tuning_db/se_resnet9_fixup_h200.db
         --case torchvision:resnet50,128,tuning_db/resnets_h200.db
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from autotune.core import AutotuneError
from autotune.measure import median_interval
from autotune_cli.command_line import output, percent, positive
from autotune_cli.main import run_program
from autotune_cli.record import ROOT, provenance, write

CHILD = Path(__file__).with_name("checkout_child.py")
KINDS = ("network", "int8", "step")


@dataclass(frozen=True)
class Case:
    """A network to time.

    db: Path of the database, relative to each checkout.
    kind: One of KINDS.
    """

    model: str
    batch: int
    db: str
    kind: str = "network"


@dataclass(frozen=True)
class Outcome:
    """Times of a case in microseconds, sample by sample; both lists have one entry for each round."""

    case: Case
    here_us: list[float]
    other_us: list[float]

    @property
    def ratio(self) -> float:
        """Time of this checkout over the time of the other: the median over rounds."""
        return statistics.median(self._ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of `ratio`."""
        low, high = median_interval(self._ratios)
        return low, high

    @property
    def _ratios(self) -> list[float]:
        return [here / other for here, other in zip(self.here_us, self.other_us, strict=True)]


def read_case(text: str) -> Case:
    """Read a case from MODEL,BATCH,DB or MODEL,BATCH,DB,KIND."""
    parts = text.split(",")
    if len(parts) not in (3, 4) or not parts[1].isdigit() or not {*parts[3:]} <= {*KINDS}:
        raise argparse.ArgumentTypeError(f"'{text}' is not a case: write MODEL,BATCH,DB[,{'|'.join(KINDS)}]")
    return Case(parts[0], positive(parts[1]), *parts[2:])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--other", type=Path, required=True, metavar="DIR", help="the other checkout, its engine built")
    parser.add_argument(
        "--case", type=read_case, action="append", required=True, metavar="MODEL,BATCH,DB[,KIND]",
        help="a network, its batch size, its database in each checkout, and what is timed: the network in 16 bits "
        "(the default), int8, or step, a training step; may be repeated",
    )  # fmt: skip
    parser.add_argument("--rounds", type=positive, default=31, metavar="N", help="samples of each side (default 31)")
    parser.add_argument("--tolerance", type=percent, default="1%", metavar="P", help="default %(default)s")
    parser.add_argument("--out", type=output, metavar="FILE.json", help="the samples")


class Checkout:
    """A process that times the networks of one checkout. Use it as a context manager."""

    def __init__(self, folder: Path, cases: Sequence[Case]) -> None:
        paths = [dict(asdict(case), db=str(folder / case.db)) for case in cases]
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *_site_packages()])},
        )

    def __enter__(self) -> Checkout:
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def sample_us(self, number: int) -> float:
        """Return the microseconds of one call of a case."""
        assert self._process.stdin
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise AutotuneError(f"the process of {self.folder} ended; its error is above: is its engine built?")
        return line


def _site_packages() -> list[str]:
    """Return the entries of PYTHONPATH that belong to no checkout."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [entry for entry in entries if entry and not Path(entry).resolve().is_relative_to(ROOT)]


def compare(here: Checkout, other: Checkout, cases: Sequence[Case], rounds: int) -> list[Outcome]:
    """Return the samples of all cases, taken in alternation."""
    outcomes = [Outcome(case, [], []) for case in cases]
    rng = random.Random(0)
    for _ in range(rounds):
        for number in rng.sample(range(len(cases)), len(cases)):
            sides = [(here, outcomes[number].here_us), (other, outcomes[number].other_us)]
            rng.shuffle(sides)
            for checkout, samples in sides:
                samples.append(checkout.sample_us(number))
    return outcomes


def main(arguments: argparse.Namespace) -> int:
    cases, others = arguments.case, arguments.other.resolve()
    with Checkout(ROOT, cases) as here, Checkout(others, cases) as other:
        outcomes = compare(here, other, cases, arguments.rounds)
    table = Table(box=None, header_style="bold")
    for name in ("network", "batch", "other, us", "here, us", "here / other", "95 % interval"):
        table.add_column(name, justify="left" if name == "network" else "right")
    for one in outcomes:
        medians = (statistics.median(one.other_us), statistics.median(one.here_us))
        low, high = one.interval
        row = [f"{medians[0]:.2f}", f"{medians[1]:.2f}", f"{one.ratio:.3f}", f"{low:.3f} to {high:.3f}"]
        name = one.case.model if one.case.kind == "network" else f"{one.case.model} {one.case.kind}"
        table.add_row(name, str(one.case.batch), *row)
    Console().print(table)
    if arguments.out:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        results = [asdict(one) | {"ratio": one.ratio, "interval": one.interval} for one in outcomes]
        write({**provenance(device), "other": others.name, "cases": results}, arguments.out)
    return int(any(one.interval[0] > 1 + arguments.tolerance for one in outcomes))


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
