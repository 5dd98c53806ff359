"""Measure the host time of FusedResNet: of loading it, and of a call.

The time of loading is from `import torch` to the first result, in new
processes. For a captured model it is from the model in torch to the first
result, once by FusedResNet.from_model, and once by torch.compile with the
backend "autotune", with the part before torch calls the backend. A call returns
while the GPU works. On a CPU the kernels run within the call, so there only the
check of the state and the allocation of the output are host time.

Example:
  python benchmarks/programs/bench_host.py --db tuning_db/se_resnet9_fixup_h200.db
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import first_result
import torch

from autotune.core import AutotuneError
from autotune.measure import synchronize
from autotune_cli.command_line import DEFAULT_MODEL, add_device, add_model, positive, torch_device
from autotune_cli.main import run_program
from autotune_cli.models import load
from fused_resnet import FusedResNet
from fused_resnet.call import CallCache

BURST = 20
"""Calls between two synchronizations: few enough that the driver's launch queue does not fill and block the host."""


def start_times(options: argparse.Namespace, device: torch.device, door: str) -> dict[str, float]:
    """Return the milliseconds to a first result through a door by stage, medians over new processes, and their total.

    Raises AutotuneError if a process fails.
    """
    shape = ",".join(map(str, options.input)) if options.input else ""
    words = (door, options.model, shape, str(options.db), str(options.batch), str(device))
    command = [sys.executable, first_result.__file__, *words]
    runs: list[dict[str, float]] = []
    for _ in range(options.loads):
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or [""])[-1]
            raise AutotuneError(f"{first_result.__file__} failed: {said}")
        runs.append(json.loads(done.stdout))
        runs[-1].setdefault(first_result.TOTAL, sum(runs[-1].get(stage, 0.0) for stage in first_result.STAGES))
    return {part: 1e3 * statistics.median(seconds[part] for seconds in runs) for part in runs[0]}


def host_us(call: Callable[[], object], device: torch.device, calls: int) -> float:
    """Return the median over bursts of the host time of one call, in microseconds."""
    times = []
    for _ in range(max(1, calls // BURST)):
        synchronize(device)
        start = time.perf_counter_ns()
        for _ in range(BURST):
            call()
        times.append((time.perf_counter_ns() - start) / 1e3 / BURST)
    return statistics.median(times)


def measure(network: FusedResNet, x: torch.Tensor, calls: int) -> dict[str, float]:
    """Return the microseconds of a call and of its parts."""
    with torch.inference_mode():
        out = network(x)
        given, context, stream = network._bound(x)
        parts: dict[str, Callable[[], object]] = {
            "call": lambda: network(x),
            "call with out=": lambda: network(x, out=out),
            "check the state": network._cache.state.unchanged,
            "without guards": CallCache(network).state.unchanged,
            "make the output": lambda: torch.empty_like(context.template),
            "engine": lambda: context.run(given, [out], stream),
        }
        for part in parts.values():
            host_us(part, x.device, BURST)
        return {name: host_us(part, x.device, calls) for name, part in parts.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the tuning database")
    add_model(parser, "se_resnet9_fixup", in_channels=False)
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="batch size (default 1)")
    parser.add_argument(
        "--calls", type=positive, default=5000, metavar="N", help="calls for each measurement (default 5000)"
    )
    parser.add_argument(
        "--loads", type=int, default=5, metavar="N", help="loads, each in a new process (default 5; 0: none)"
    )
    add_device(parser)


def main(options: argparse.Namespace) -> int:
    device, model = torch_device(options.device), load(options.model, options.input, None)
    warnings.filterwarnings("ignore", message=".*is not tuned")
    for door in (("",) if options.model == DEFAULT_MODEL else first_result.DOORS) if options.loads > 0 else ():
        parts = start_times(options, device, door)
        since = f"the call of {door}" if door else "import torch"
        print(f"from {since} to a first result, N = {options.batch}: {parts.pop(first_result.TOTAL):.0f} ms")
        reading = parts.pop(first_result.READING, None)
        for part, milliseconds in parts.items():
            print(f"    {part:22}{milliseconds:8.1f}")
            if part == "choosing and binding":
                print(f"      {first_result.READING:20}{reading:8.1f}")
    for graph in (True, False) if device.type == "cuda" else (False,):
        network = model.fused(str(options.db))
        network._cuda_graphs = graph
        network.to(device, torch.float16 if device.type == "cuda" else torch.float32)
        x = torch.randn(options.batch, *model.shape).to(next(network.parameters()))
        found = measure(network, x, options.calls)
        print(f"{'with' if graph else 'without'} a CUDA graph, N = {options.batch}: {found['call']:.1f} us a call")
        for name in ("call with out=", "check the state", "without guards", "make the output", "engine"):
            print(f"    {name:22}{found[name]:8.2f}")
        if device.type == "cuda":
            print(f"    {'around the engine':22}{found['call'] - found['engine']:8.2f}")
    return 0


if __name__ == "__main__":
    run_program(__doc__, add_arguments, main)
