"""Call one FusedResNet from several threads with mixed batch sizes.

Each thread has its own CUDA stream. Every result is compared with the plain
network in float32. With --update, a parameter changes in place between calls,
and results must be those of the new weights. The exit code is 1 if a result is
wrong. It is also 1 if the process uses more memory, file descriptors, threads
or device memory at the end than after a fifth of the calls.

Example:
  python tests/campaigns/stress.py --db tuning_db/se_resnet9_fixup_h200.db
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import random
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import psutil
import torch
from torch import nn

from autotune.measure import synchronize
from autotune_cli.command_line import add_device, add_model, positive, seconds, sizes, torch_device
from autotune_cli.main import run_program
from autotune_cli.models import Model, load
from fused_resnet import FusedResNet

SAMPLE_SECONDS = 0.5
"""Time between two samples of usage: several fall between two changes of the weights."""

EARLY, LATE = 0.2, 0.6
"""Shares of the calls from which usage is compared. Until EARLY, plans are bound and the pools are filled."""

SLACK_BYTES = 32 * 2**20
"""Growth that is no leak: the allocators of torch and of the process keep freed blocks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the tuning database")
    add_model(parser, "se_resnet9_fixup", in_channels=False)
    parser.add_argument(
        "--update", type=seconds, metavar="TIME", help="change a parameter at this interval, such as 2s"
    )
    parser.add_argument("--calls", type=positive, default=100_000, metavar="N", help="calls in all (default 100000)")
    parser.add_argument("--threads", type=positive, default=4, metavar="N", help="threads (default 4)")
    parser.add_argument(
        "--batches",
        type=sizes,
        default="1,2,3,8,17,32,64,128",
        metavar="N[,N]",
        help="batch sizes (default %(default)s)",
    )
    add_device(parser)
    parser.add_argument(
        "--plans", type=positive, default=256, metavar="N", help="plans that are kept (default 256, enough for all)"
    )
    parser.add_argument("--no-graph", action="store_true", help="launch kernels one by one, not as a CUDA graph")


@dataclass(frozen=True)
class Case:
    """An input, and the plain network's results in float32 for each state of the weights."""

    x: torch.Tensor
    expected: tuple[torch.Tensor, ...]


class Weights:
    """The weights of a network, which change while no thread calls it.

    Attributes:
        updates: Number of changes so far.
    """

    def __init__(self, network: nn.Module) -> None:
        self.updates = 0
        self._network, self._callers = network, 0
        self._changed = threading.Condition()

    @contextmanager
    def kept(self) -> Iterator[int]:
        """Keep the weights as they are for a call; yields the number of changes so far."""
        with self._changed:
            self._callers += 1
            updates = self.updates
        try:
            yield updates
        finally:
            with self._changed:
                self._callers -= 1
                self._changed.notify_all()

    def update(self) -> None:
        """Change the weights after the calls in progress."""
        with self._changed:
            self._changed.wait_for(lambda: not self._callers)
            device = next(self._network.parameters()).device
            synchronize(device)  # runs that were launched may still read the weights
            update(self._network)
            synchronize(device)
            self.updates += 1


class Caller(threading.Thread):
    """A thread that makes a share of the calls on its own stream.

    `wrong` (count) and `worst` (relative error) stay on the device until the end, so that reading them does not
    synchronize.
    """

    def __init__(
        self, network: FusedResNet, weights: Weights, cases: Sequence[Case], calls: int, seed: int, limit: float
    ) -> None:
        super().__init__()
        device = cases[0].x.device
        self.done, self.failure = 0, ""
        self._network, self._weights, self._cases = network, weights, cases
        self._calls, self._limit = calls, limit
        self._random = random.Random(seed)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.wrong = torch.zeros((), dtype=torch.int64, device=device)
        self.worst = torch.zeros((), device=device)

    def run(self) -> None:
        """Call the network, compare the results, and count the calls."""
        try:
            with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
                self._work()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"

    @torch.no_grad()
    def _work(self) -> None:
        while self.done < self._calls:
            case = self._random.choice(self._cases)
            with self._weights.kept() as updates:
                y = self._network(case.x).float()
            expected = case.expected[updates % len(case.expected)]
            error = (y - expected).norm() / expected.norm()
            self.wrong += ~(error <= self._limit)  # true also for NaN
            torch.maximum(self.worst, error, out=self.worst)
            self.done += 1
            if self._stream and self.done % 100 == 0:
                self._stream.synchronize()  # so that counted calls are finished calls
        if self._stream:
            self._stream.synchronize()


@torch.no_grad()
def update(module: nn.Module) -> None:
    """Change the largest parameter in place: a second call restores it exactly."""
    max(module.parameters(), key=torch.Tensor.numel).neg_()


@torch.no_grad()
def cases_of(model: Model, network: FusedResNet, batches: Sequence[int], states: int) -> list[Case]:
    """Return two cases for each batch size, the second channels last."""
    first = next(network.parameters())
    plain = copy.deepcopy(model.module).float().to(first.device)
    generator = torch.Generator().manual_seed(0)
    orders = (torch.contiguous_format, torch.channels_last)
    shapes = [((n, *model.shape), order) for n in batches for order in orders]
    inputs = [
        torch.randn(shape, generator=generator).to(first).contiguous(memory_format=order) for shape, order in shapes
    ]
    expected: list[list[torch.Tensor]] = []
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for _ in range(states):
            expected.append([plain(x.float()) for x in inputs])
            update(plain)
    return [Case(x, results) for x, results in zip(inputs, zip(*expected, strict=True), strict=True)]


@dataclass(frozen=True)
class Usage:
    """Resources in use.

    Attributes:
        host: Memory of the process in bytes.
        device: Memory of the device that all processes use, in bytes.
        reserved: Device memory that torch's allocator holds, with freed blocks, in bytes.
        allocated: Device memory of tensors, in bytes.
        files: File descriptors of the process.
        threads: Threads of the process.
    """

    host: int
    device: int
    reserved: int
    allocated: int
    files: int
    threads: int

    @classmethod
    def now(cls, device: torch.device) -> Usage:
        """Return the present usage."""
        process, device_memory = psutil.Process(), (0, 0, 0)
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            device_memory = (total - free, torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device))
        return cls(process.memory_info().rss, *device_memory, process.num_fds(), process.num_threads())

    @classmethod
    def of(cls, samples: Sequence[Usage]) -> Usage:
        """Return the highest usage of samples; for file descriptors the lowest, as a database is open while binding."""
        highest = {field.name: max(getattr(sample, field.name) for sample in samples) for field in fields(cls)}
        return cls(**{**highest, "files": min(sample.files for sample in samples)})

    def grown(self, before: Usage) -> bool:
        """Return whether it has grown by more than the allocators keep.

        `allocated` does not count: it depends on whether a sample falls between two sets of weights.
        """
        memory = max(self.host - before.host, self.device - before.device, self.reserved - before.reserved)
        return memory > SLACK_BYTES or self.files > before.files or self.threads > before.threads


class Samples:
    """Samples of usage, each with the share of the calls that were done."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._next = device, 0.0
        self._taken: list[tuple[float, Usage]] = []

    def take(self, done: float) -> None:
        """Take a sample if one is due; `done` is a share of the calls."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SAMPLE_SECONDS
            self._taken.append((done, Usage.now(self._device)))

    def compared(self) -> tuple[Usage, Usage]:
        """Return the usage from EARLY to LATE and that from LATE on; the same twice if a part has no sample."""
        early = [usage for done, usage in self._taken if EARLY <= done < LATE]
        late = [usage for done, usage in self._taken if done >= LATE]
        if not early or not late:
            early = late = [usage for _, usage in self._taken]
        return Usage.of(early), Usage.of(late)


def main(options: argparse.Namespace) -> int:
    device = torch_device(options.device)
    cuda = device.type == "cuda"
    warnings.filterwarnings("ignore", message=".*is not tuned")
    model = load(options.model, options.input, None)
    model.call(torch.zeros(1, *model.shape))  # an error names the shape
    network = model.fused(str(options.db))
    network._cuda_graphs, network._max_plans = not options.no_graph, options.plans
    network.to(device, torch.float16 if cuda else torch.float32)
    cases = cases_of(model, network, options.batches, 2 if options.update else 1)
    for case in cases:
        network(case.x)
    shares = [options.calls // options.threads + (i < options.calls % options.threads) for i in range(options.threads)]
    weights, limit = Weights(network), 5e-3 if cuda else 1e-5
    callers = [Caller(network, weights, cases, share, seed, limit) for seed, share in enumerate(shares)]

    started, samples = time.monotonic(), Samples(device)
    for caller in callers:
        caller.start()
    while any(caller.is_alive() for caller in callers):
        samples.take(sum(caller.done for caller in callers) / options.calls)
        time.sleep(0.05)
        if options.update and time.monotonic() - started > (weights.updates + 1) * options.update:
            weights.update()
    for caller in callers:
        caller.join()
    took = time.monotonic() - started

    done, wrong = sum(caller.done for caller in callers), sum(int(caller.wrong) for caller in callers)
    failures = [caller.failure for caller in callers if caller.failure]
    before, after = samples.compared()
    print(f"{done} calls from {options.threads} threads, {wrong} wrong, in {took:.0f} s, {weights.updates} updates")
    print(f"largest relative error {max(float(caller.worst) for caller in callers):.1e}")
    print("highest usage in the last two fifths of the calls; in brackets, more than in the second and third:")
    for name, end, start in (
        ("host memory", after.host, before.host),
        ("device memory", after.device, before.device),
        ("reserved by torch", after.reserved, before.reserved),
        ("allocated by torch", after.allocated, before.allocated),
    ):
        if end:
            print(f"    {name:18}{end / 2**20:8.0f} MiB ({max(0, end - start) / 2**20:.0f})")
    print(f"file descriptors {before.files} -> {after.files}, threads {before.threads} -> {after.threads}")
    for failure in failures:
        print(f"a thread ended early: {failure}")
    return int(bool(wrong or failures or after.grown(before)))


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
