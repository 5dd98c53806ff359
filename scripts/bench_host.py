"""What a call of FusedResNet costs the host: microseconds until it returns, with the device left to work on.

On a CPU the kernels run within the call, so there only the line "around the engine" is the host's cost.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from _cli import positive, run
from _timing import synchronize

from fused_resnet import FusedResNet

BURST = 20
"""Calls between two waits: few enough that the driver's queue never fills and makes the host wait."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the tuning database")
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="default 1")
    parser.add_argument("--calls", type=positive, default=5000, metavar="N", help="of each kind (default 5000)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def host_us(call: Callable[[], object], device: torch.device, calls: int) -> float:
    """Median over bursts of the host's time for one call, in microseconds."""
    times = []
    for _ in range(max(1, calls // BURST)):
        synchronize(device)
        start = time.perf_counter_ns()
        for _ in range(BURST):
            call()
        times.append((time.perf_counter_ns() - start) / 1e3 / BURST)
    return statistics.median(times)


def measure(network: FusedResNet, x: torch.Tensor, calls: int) -> dict[str, float]:
    """Microseconds of a call, and of its parts."""
    with torch.inference_mode():
        out = network(x)
        _, frame, stream = network.frame(x)
        parts: dict[str, Callable[[], object]] = {
            "call": lambda: network(x),
            "call with out=": lambda: network(x, out=out),
            "look at the weights": network._watch.unchanged,
            "make the output": lambda: torch.empty_like(frame.template),
            "engine": lambda: frame.run(x, out, stream),
        }
        for part in parts.values():
            host_us(part, x.device, BURST)
        return {name: host_us(part, x.device, calls) for name, part in parts.items()}


def main() -> int:
    options = arguments()
    device = torch.device(options.device)
    warnings.filterwarnings("ignore", message=".*is not tuned")
    for graph in (True, False) if device.type == "cuda" else (False,):
        network = FusedResNet(options.db, graph=graph)
        network.to(device, torch.float16 if device.type == "cuda" else torch.float32)
        x = torch.randn(options.batch, 3, 64, 64).to(next(network.parameters()))
        found = measure(network, x, options.calls)
        print(f"{'with' if graph else 'without'} a CUDA graph, N = {options.batch}: {found['call']:.1f} us a call")
        for name in ("call with out=", "look at the weights", "make the output", "engine"):
            print(f"    {name:22}{found[name]:8.2f}")
        print(f"    {'around the engine':22}{found['call'] - found['engine']:8.2f}")
    return 0


if __name__ == "__main__":
    run(main)
