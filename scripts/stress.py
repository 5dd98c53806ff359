"""Call one FusedResNet from several threads with mixed batch sizes; check every
result, and that memory stays flat.

Each thread has a CUDA stream of its own. Results are compared with the plain
network in float32. Ends with exit code 1 if a result is wrong, or if the
process or the device holds more memory at the end than after a fifth of the
calls.
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

from autotune_cli.command_line import positive, run, sizes
from fused_resnet import FusedResNet
from fused_resnet.networks import se_resnet9_fixup

WARM_SHARE = 5
"""The first of so many parts of the calls may still grow: plans are bound, pools fill."""

SLACK_BYTES = 32 * 2**20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the tuning database")
    parser.add_argument("--calls", type=positive, default=100_000, metavar="N", help="in all (default 100000)")
    parser.add_argument("--threads", type=positive, default=4, metavar="N", help="default 4")
    parser.add_argument(
        "--batches",
        type=sizes,
        default="1,2,3,8,17,32,64,128",
        metavar="N[,N]",
        help="batch sizes (default %(default)s)",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--plans", type=positive, default=256, metavar="N", help="plans that are kept (default 256: all)"
    )
    parser.add_argument("--no-graph", action="store_true", help="launch kernels one by one instead of as a CUDA graph")
    return parser.parse_args()


class Worker(threading.Thread):
    """Makes its share of the calls, on its own stream. `wrong` and `worst` stay on the device until the end."""

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
        """Call, compare, count."""
        try:
            with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
                self._work()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"

    def _work(self) -> None:
        while self.done < self._calls:
            x, expected = self._random.choice(self._cases)
            error = (self._network(x).float() - expected).norm() / expected.norm()
            self.wrong += ~(error <= self._limit)  # also where it is NaN
            torch.maximum(self.worst, error, out=self.worst)
            self.done += 1
            if self._stream and self.done % 100 == 0:
                self._stream.synchronize()  # so that the calls are made when they are counted
        if self._stream:
            self._stream.synchronize()


def cases_of(
    network: FusedResNet, batches: Sequence[int], device: torch.device
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(input, what the plain network makes of it in float32): two for each batch, the second channels last."""
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
    """Bytes that the process has in RAM, and that are taken on the device."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if device.type != "cuda":
        return resident, 0
    free, total = torch.cuda.mem_get_info(device)
    return resident, total - free


def main() -> int:
    options = arguments()
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    warnings.filterwarnings("ignore", message=".*is not tuned")
    network = FusedResNet(options.db, graph=not options.no_graph, plans=options.plans)
    network.load_state_dict(se_resnet9_fixup.randomize(se_resnet9_fixup.build()).state_dict())
    network.to(device, torch.float16 if cuda else torch.float32)
    cases = cases_of(network, options.batches, device)
    for x, _ in cases:
        network(x)
    shares = [options.calls // options.threads + (i < options.calls % options.threads) for i in range(options.threads)]
    workers = [Worker(network, cases, share, seed, 5e-3 if cuda else 1e-5) for seed, share in enumerate(shares)]

    started, before = time.monotonic(), None
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.05)
        if before is None and sum(worker.done for worker in workers) * WARM_SHARE >= options.calls:
            before = memory(device)
    for worker in workers:
        worker.join()
    after = memory(device)
    seconds = time.monotonic() - started

    done, wrong = sum(worker.done for worker in workers), sum(int(worker.wrong) for worker in workers)
    failures = [worker.failure for worker in workers if worker.failure]
    grown = [max(0, end - start) for start, end in zip(before or after, after, strict=True)]
    print(f"{done} calls from {options.threads} threads, {wrong} wrong, in {seconds:.0f} s")
    print(f"largest relative error {max(float(worker.worst) for worker in workers):.1e}")
    print(f"host memory   {after[0] / 2**20:8.0f} MiB, {grown[0] / 2**20:.0f} more than after a fifth of the calls")
    if cuda:
        print(f"device memory {after[1] / 2**20:8.0f} MiB, {grown[1] / 2**20:.0f} more than after a fifth of the calls")
    for failure in failures:
        print(f"a thread ended early: {failure}")
    return int(bool(wrong or failures or max(grown) > SLACK_BYTES))


if __name__ == "__main__":
    run(main)
