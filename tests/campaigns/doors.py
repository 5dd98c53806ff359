"""Tune a model through every door, and compare the doors with each other and with torch.compile.

Each door gets a fresh database and fresh folders of compiled code. Then all
doors, eager torch and torch.compile with freezing run in one process and are
timed in interleaved rounds. The exit code is 1 if a door falls short: it is
slower than the fastest door or than torch.compile, its results are less exact
than eager's, its tune takes longer than its budget, or it fails.

Example:
  python tests/campaigns/doors.py --model torchvision:mnasnet1_0 --batch 32 --budget 100s
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import torch
from door_verdicts import EAGER, LESS_EXACT, LONGER, PEER, SLOWER, Outcome, rivals, shortfalls
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from tuning_doors import DOORS, Opened, Subject

from autotune.core import AutotuneError, require_one_of
from autotune.core.device_turn import turn
from autotune.ir import DTYPES
from autotune_cli import models, timing
from autotune_cli.baselines import TURN_SECONDS, BaselineInput, Forward, compiled_frozen, eager, flat
from autotune_cli.command_line import add_device, add_model, names, output, positive, seconds, torch_device
from autotune_cli.commands.bench import make_case, relative_error
from autotune_cli.main import run_program
from autotune_cli.record import one_line, provenance, slug, write

METHOD = (
    f"a door falls short if its time is more than {SLOWER} times that of the fastest other door or of torch.compile by "
    "the lower end of the 95 % interval of the ratio in one round, its error is more than "
    f"{LESS_EXACT} times eager's, its tune took more than {LONGER} times the budget, or it failed; us: bursts of "
    "back-to-back calls in interleaved rounds, by device events on a GPU and the host clock on a CPU; error: "
    "norm(result - reference) / norm(reference), the reference in float32, for results in float32 in float64; "
    "torch.compile: with freezing and channels-last, reduce-overhead on a GPU, the default mode on a CPU; "
    "cudnn.benchmark, no TF32; a fresh database and fresh caches for each door"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, None, in_channels=False)
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="batch size (default 1)")
    models.add_dtype(parser)
    add_device(parser)
    parser.add_argument(
        "--budget", type=seconds, default=100.0, metavar="TIME", help="time of each door's tune (default 100s)"
    )
    parser.add_argument(
        "--doors", type=names, default=list(DOORS), metavar="A,B", help=f"only these of {', '.join(DOORS)}"
    )
    parser.add_argument("--seconds", type=seconds, default=2.0, metavar="TIME", help="time to time each (default 2)")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep databases, compiled code and what tune prints in a folder in DIR"
    )
    parser.add_argument("--out", type=output, metavar="FILE.json", help="the record (default generated/doors-...json)")


def main(args: argparse.Namespace) -> int:
    """Run the program; return its exit code."""
    if args.model is None:
        raise AutotuneError("--model is missing: name a network that no shipped database has")
    for door in args.doors:
        require_one_of("door", door, list(DOORS))
    device = torch_device(args.device)
    dtype = args.dtype or models.default_dtype(device, None)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    model = models.load(args.model, args.input, None)
    plain = argparse.Namespace(train=False, amp=False, db="", precision=None)
    case = AnyRank(**vars(make_case(model, plain, args.batch, device, DTYPES[dtype])))
    about = provenance(device, args.out)  # before the run: a commit that is made meanwhile is not what ran
    with _folder(args.keep) as folder:
        outcomes = measure(Subject(args.model, case, args.budget), args.doors, args.seconds, folder)
    short = {door: shortfalls(outcomes, door, args.budget) for door in args.doors}
    arguments = {key: value for key, value in vars(args).items() if key not in ("out", "keep", "started")}
    entries = {name: _entry(outcomes, name, short.get(name, [])) for name in outcomes}
    record = {
        **about,
        "arguments": arguments | {"input": model.shape, "dtype": dtype, "device": device.type},
        "method": METHOD,
        "outcomes": entries,
        "falls_short": {door: found for door, found in short.items() if found},
    }
    stem = f"doors-{model.name}-n{args.batch}-{slug(about['machine']['device'])}-{dtype}"
    path = args.out or Path("generated") / f"{stem}.json"
    write(record, path)
    _show(f"{model.name}, batch {args.batch}, {dtype}, {about['machine']['device']}", outcomes, short)
    print(f"wrote {path}")
    return int(any(short.values()))


class AnyRank(BaselineInput):
    """A BaselineInput whose tensors have any rank: those with four or five dimensions become channels-last."""

    def nhwc(self) -> tuple[nn.Module, Tensor]:
        """Return the network and its input, both channels-last."""
        network = self.eager()
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.data = _channels_last(tensor.data)
        return network, _channels_last(self.x)


def _channels_last(x: Tensor) -> Tensor:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    return x.contiguous(memory_format=layout)


def measure(subject: Subject, doors: list[str], seconds: float, folder: Path) -> dict[str, Outcome]:
    """Prepare eager, torch.compile and the doors, then time all that run in interleaved rounds.

    Args:
        subject: What is tuned.
        doors: Names of doors.
        seconds: Time for each of them.
        folder: An empty folder, for databases and compiled code.

    Returns:
        The outcomes by name.
    """
    case, calls, outcomes = subject.case, dict[str, Forward](), dict[str, Outcome]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builds: dict[str, Callable[[], Opened]] = {
            EAGER: lambda: Opened(0.0, eager(case)),
            PEER: lambda: Opened(0.0, compiled_frozen(case)),
            **{door: partial(DOORS[door], subject, folder / f"{door}.db") for door in doors},
        }
        for name, build in builds.items():
            print(f"preparing {name}", file=sys.stderr)
            try:
                with _fresh_caches(folder / name):
                    opened = build()
                    with case.context():
                        error = relative_error(flat(opened.forward()), case.expected)
                        timing.warm_up(opened.forward, case.device)
            except Exception as problem:  # compilers and kernels raise anything
                outcomes[name] = Outcome(one_line(problem))
                continue
            calls[name] = opened.forward
            outcomes[name] = Outcome(error=error, tune_seconds=opened.seconds if name in doors else None)
        with case.context(), turn(case.device, TURN_SECONDS):
            samples = timing.interleave(calls, case.device, seconds)
    return outcomes | {name: replace(outcomes[name], us=samples[name].stream) for name in calls}


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Make an empty folder: below `keep`, where it stays, or a temporary one."""
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(prefix="doors-", dir=keep))
        return
    with tempfile.TemporaryDirectory(prefix="doors-") as folder:
        yield Path(folder)


@contextmanager
def _fresh_caches(folder: Path) -> Iterator[None]:
    """Let this process and its children compile into folders that are new, so that no door finds another's work."""
    variables = {"AUTOTUNE_GENERATED": folder / "generated", "TORCHINDUCTOR_CACHE_DIR": folder / "inductor"}
    with mock.patch.dict(os.environ, {name: str(place) for name, place in variables.items()}):
        yield


def _entry(outcomes: Mapping[str, Outcome], name: str, short: list[str]) -> dict[str, Any]:
    """Return the entry of an outcome in the record."""
    own = outcomes[name]
    if own.reason is not None:
        return {"status": "failed", "reason": own.reason}
    is_door = own.tune_seconds is not None
    found = {"status": "ok", "error": own.error, "us": asdict(timing.spread(own.us)), "samples_us": list(own.us)}
    if is_door:
        ratios = {rival: asdict(ratio) for rival, ratio in rivals(outcomes, name).items()}
        found |= {"tune_seconds": own.tune_seconds, "over": ratios, "falls_short": short}
    return found


def _show(title: str, outcomes: Mapping[str, Outcome], short: Mapping[str, list[str]]) -> None:
    """Print the table, then what falls short."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("")
    for heading in ("us", f"over {PEER}", "error", "tune s"):
        table.add_column(heading, justify="right", no_wrap=True)
    peer = outcomes[PEER]
    for name, own in sorted(outcomes.items(), key=lambda one: one[1].median_us):
        if own.reason is not None:
            continue
        ratio = f"{timing.paired_ratio(own.us, peer.us).median:.2f}" if peer.us else "-"
        tuned = "" if own.tune_seconds is None else f"{own.tune_seconds:.1f}"
        table.add_row(name, f"{own.median_us:.1f}", ratio, f"{own.error:.1e}", tuned)
    console = Console(highlight=False)
    console.print(table)
    failed = {name: [f"failed: {own.reason}"] for name, own in outcomes.items() if own.reason is not None}
    for name, found in {**failed, **short}.items():
        for text in found:
            console.print(f"{name}: {text}", markup=False)


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
