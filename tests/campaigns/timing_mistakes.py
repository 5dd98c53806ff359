"""Show four common mistakes in timing a GPU kernel.

The method of this project is shown beside them, on one convolution of torch.
docs/internals/measurement.md explains each of them. A GPU is needed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from autotune.core import AutotuneError
from autotune.measure import (
    Call,
    Monitor,
    RotatingBuffers,
    Runnable,
    copies_of,
    flush,
    host_clock,
    interleave,
    median_interval,
    sampler,
    timed,
    warm_up,
)
from autotune_cli.command_line import positive
from autotune_cli.main import run_program

CALLS = 20
EARLIER = 50  # calls that a program has queued before the one that is timed
ROUNDS = 25


@dataclass(frozen=True)
class Row:
    """A way of timing, its result for one call in microseconds, and the range of its samples."""

    name: str
    says: str
    us: float
    low: float
    high: float


class Convolution:
    """A 3x3 convolution in float16, channels-last, with its own random operands."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        n, side, channels = arguments.batch, arguments.size, arguments.channels
        self.x = torch.randn(n, channels, side, side, device=device).half().to(memory_format=torch.channels_last)
        weight = torch.randn(channels, channels, 3, 3, device=device) / (3 * channels**0.5)
        self.weight = weight.half().to(memory_format=torch.channels_last)
        y = self.x.numel()
        self.bytes = 2 * (self.x.numel() + self.weight.numel() + y)
        self.title = f"3x3 convolution, {n} images of {side}x{side}, {channels} channels, float16"

    def run(self, stream: int = 0) -> None:
        """Enqueue one call on torch's current stream."""
        F.conv2d(self.x, self.weight, padding=1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=positive, default=32, metavar="N", help="images (default 32)")
    parser.add_argument("--size", type=positive, default=28, metavar="N", help="height and width (default 28)")
    parser.add_argument(
        "--channels", type=positive, default=128, metavar="N", help="input and output channels (default 128)"
    )


def no_warm_up(call: Callable[[], object]) -> Row:
    """Synchronize before and after, but time from the first call on, which loads code and chooses an algorithm."""
    samples = []

    def finish() -> None:
        call()
        torch.cuda.synchronize()

    for _ in range(CALLS):
        torch.cuda.synchronize()
        samples.append(host_clock(finish))
    mean = sum(samples) / len(samples)
    return Row("no warm-up", "the mean includes the first calls, which load code", mean, min(samples), max(samples))


def by_host(call: Callable[[], object], before: bool, after: bool) -> list[float]:
    """Return host times of single calls, each after other work was queued, as in a program."""
    samples = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        for _ in range(EARLIER):
            call()
        if before:
            torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        if after:
            torch.cuda.synchronize()
        samples.append((time.perf_counter() - started) * 1e6)
    return samples


def wrong_ways(call: Callable[[], object]) -> list[Row]:
    """Return the mistakes; the missing warm-up comes first, because it needs a cold process."""
    rows = [no_warm_up(call)]
    ways = [
        ("no synchronize before", "includes the work that was queued before", False, True),
        ("no synchronize after", "includes only the launch, not the kernel", True, False),
        ("neither", "includes only the launch, or the wait for a full queue", False, False),
        ("host clock, both", "includes launch and wait beside the kernel", True, True),
    ]
    for name, says, before, after in ways:
        samples = by_host(call, before, after)
        rows.append(Row(name, says, timed(samples).median_us or 0.0, min(samples), max(samples)))
    return rows


def right_ways(wanted: argparse.Namespace, convolution: Convolution, device: torch.device) -> list[Row]:
    """Time warm, interleaved graphs between events, as the project does, on resident and on rotating operands."""
    copies = [convolution] + [Convolution(wanted, device) for _ in range(copies_of(convolution.bytes, device) - 1)]
    ways: list[tuple[str, str, Runnable, int | None, Call | None]] = [
        ("ours, resident", "events around a graph of many calls; operands stay in L2", convolution, None, None),
        ("ours, rotating", "the same; no operand is found in L2", RotatingBuffers(copies), len(copies), flush(device)),
    ]
    samplers = [sampler(step, device, "graph", most, before) for _, _, step, most, before in ways]
    warm_up(lambda: sum(sample() for sample in samplers), 0.5, 5.0)
    taken = interleave(samplers, ROUNDS, Monitor(device).slowed)
    return [
        Row(name, says, timed(samples).median_us or 0.0, *median_interval(samples))
        for (name, says, *_), samples in zip(ways, taken.samples, strict=True)
    ]


def main(wanted: argparse.Namespace) -> None:
    if not torch.cuda.is_available():
        raise AutotuneError("torch sees no NVIDIA GPU: these mistakes occur on a GPU only")
    device = torch.device("cuda:0")
    torch.backends.cudnn.benchmark = True
    with torch.inference_mode():
        convolution = Convolution(wanted, device)
        wrong = wrong_ways(convolution.run)
        right = right_ways(wanted, convolution, device)
    show(f"{convolution.title}, {torch.cuda.get_device_name(device)}", wrong, right)


def show(title: str, wrong: list[Row], right: list[Row]) -> None:
    """Print the table: each result, its range, and its ratio to the right one."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("method\nproperty", overflow="fold")
    for name in ("one call\nus", "range of\nsamples", "ratio\nto ours"):
        table.add_column(name, justify="right", no_wrap=True)
    base = right[0].us
    for row in [*wrong, *right]:
        numbers = (f"{row.us:.1f}", f"{row.low:.1f} - {row.high:.1f}", f"{row.us / base:.2f}")
        table.add_row(f"{row.name}\n[dim]{row.says}", *numbers, style="bold" if row in right else None)
    Console(highlight=False).print(table)


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
