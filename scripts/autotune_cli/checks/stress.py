"""Call one FusedResNet from several threads with mixed batch sizes.

Every result is checked, and that memory does not grow. Each thread has its own
CUDA stream. Results are compared with the plain network in float32. The exit
code is 1 if a result is wrong, or if the process or the device uses more memory
at the end than after a fifth of the calls.

Example:
  autotune stress --db tuning_db/se_resnet9_fixup_h200.db
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from autotune_cli.command_line import add_device, positive, sizes, torch_device
from fused_resnet import FusedResNet
from fused_resnet.networks import se_resnet9_fixup

WARM_SHARE = 5
"""Memory is compared after 1 / WARM_SHARE of the calls, when all plans are bound and the pools are filled."""

SLACK_BYTES = 32 * 2**20
"""Growth that is no leak: the allocators of torch and of the process keep freed blocks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the tuning database")
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


class Caller(threading.Thread):
    """A thread that makes a share of the calls on its own stream.

    `wrong` (count) and `worst` (relative error) stay on the device until the end, so that reading them does not
    synchronize.
    """

    def __init__(
        self,
        network: FusedResNet,
        cases: Sequence[tuple[torch.Tensor, torch.Tensor]],
        calls: int,
        seed: int,
        limit: float,
    ) -> None:
        super().__init__()
        device = cases[0][0].device
        self.done, self.failure = 0, ""
        self._network, self._cases, self._calls, self._limit = network, cases, calls, limit
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

    def _work(self) -> None:
        while self.done < self._calls:
            x, expected = self._random.choice(self._cases)
            error = (self._network(x).float() - expected).norm() / expected.norm()
            self.wrong += ~(error <= self._limit)  # true also for NaN
            torch.maximum(self.worst, error, out=self.worst)
            self.done += 1
            if self._stream and self.done % 100 == 0:
                self._stream.synchronize()  # so that counted calls are finished calls
        if self._stream:
            self._stream.synchronize()


def cases_of(
    network: FusedResNet, batches: Sequence[int], device: torch.device
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (input, output of the plain network in float32): two for each batch size, the second channels-last."""
    plain = se_resnet9_fixup.build().to(device)
    plain.load_state_dict(network.state_dict())
    dtype = next(network.parameters()).dtype
    generator = torch.Generator().manual_seed(0)
    cases = []
    for n in batches:
        for order in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(n, 3, 64, 64, generator=generator).to(device, dtype).contiguous(memory_format=order)
            with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                cases.append((x, plain(x.float())))
    return cases


def memory(device: torch.device) -> tuple[int, int]:
    """Return the resident bytes of the process, and the used bytes of the device."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if device.type != "cuda":
        return resident, 0
    free, total = torch.cuda.mem_get_info(device)
    return resident, total - free


def main(options: argparse.Namespace) -> int:
    device = torch_device(options.device)
    cuda = device.type == "cuda"
    warnings.filterwarnings("ignore", message=".*is not tuned")
    network = FusedResNet(options.db, graph=not options.no_graph, plans=options.plans)
    network.load_state_dict(se_resnet9_fixup.randomize(se_resnet9_fixup.build()).state_dict())
    network.to(device, torch.float16 if cuda else torch.float32)
    cases = cases_of(network, options.batches, device)
    for x, _ in cases:
        network(x)
    shares = [options.calls // options.threads + (i < options.calls % options.threads) for i in range(options.threads)]
    callers = [Caller(network, cases, share, seed, 5e-3 if cuda else 1e-5) for seed, share in enumerate(shares)]

    started, before = time.monotonic(), None
    for caller in callers:
        caller.start()
    while any(caller.is_alive() for caller in callers):
        time.sleep(0.05)
        if before is None and sum(caller.done for caller in callers) * WARM_SHARE >= options.calls:
            before = memory(device)
    for caller in callers:
        caller.join()
    after = memory(device)
    seconds = time.monotonic() - started

    done, wrong = sum(caller.done for caller in callers), sum(int(caller.wrong) for caller in callers)
    failures = [caller.failure for caller in callers if caller.failure]
    grown = [max(0, end - start) for start, end in zip(before or after, after, strict=True)]
    print(f"{done} calls from {options.threads} threads, {wrong} wrong, in {seconds:.0f} s")
    print(f"largest relative error {max(float(caller.worst) for caller in callers):.1e}")
    print(f"host memory   {after[0] / 2**20:8.0f} MiB, {grown[0] / 2**20:.0f} more than after a fifth of the calls")
    if cuda:
        print(f"device memory {after[1] / 2**20:8.0f} MiB, {grown[1] / 2**20:.0f} more than after a fifth of the calls")
    for failure in failures:
        print(f"a thread ended early: {failure}")
    return int(bool(wrong or failures or max(grown) > SLACK_BYTES))
