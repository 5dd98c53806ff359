"""Time calls of FusedResNet for `compare_checkouts`; run as a script, with one checkout on PYTHONPATH.

It uses only what every version of the project has, because it runs with the modules of the checkout under test.
Arguments: a JSON list of cases, each {"model", "batch", "db"}. For each line on standard input, the number of a case,
it prints the microseconds of one call, measured over back-to-back calls. Without a GPU it measures on the CPU.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable

import torch

from fused_resnet import FusedResNet

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SAMPLE_US = 20_000.0
"""Time of one sample: long against the switch from the other checkout's process."""


def build(case: dict[str, str]) -> tuple[FusedResNet, torch.Tensor]:
    torch.manual_seed(0)
    model, batch = case["model"], int(case["batch"])
    if model.startswith("torchvision:"):
        import torchvision

        plain = getattr(torchvision.models, model.partition(":")[2])().eval()
        network, shape = FusedResNet.from_model(plain, case["db"]), (batch, 3, 224, 224)
    else:
        network, shape = FusedResNet(case["db"]), (batch, 3, 64, 64)
        with torch.no_grad():  # some parameters start as zero, and zeros take less power
            for tensor in network.parameters():
                tensor.copy_(0.05 * torch.randn_like(tensor))
    dtype = torch.float16 if DEVICE == "cuda" else torch.float32
    return network.to(DEVICE, dtype).eval(), torch.randn(shape).to(DEVICE, dtype)


def sample_us(network: FusedResNet, x: torch.Tensor, calls: int) -> float:
    for _ in range(max(3, calls // 4)):  # clocks and caches after the other process
        y = network(x)
    clock = _device_clock if DEVICE == "cuda" else _host_clock
    elapsed_us = clock()
    for _ in range(calls):
        y = network(x)
    us = elapsed_us() / calls
    assert torch.isfinite(y).all()
    return us


def _device_clock() -> Callable[[], float]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()

    def elapsed_us() -> float:
        end.record()
        end.synchronize()
        return float(1000 * start.elapsed_time(end))

    return elapsed_us


def _host_clock() -> Callable[[], float]:
    start = time.perf_counter()
    return lambda: 1e6 * (time.perf_counter() - start)


def main() -> None:
    warnings.simplefilter("ignore")
    cases = json.loads(sys.argv[1])
    built = [build(case) for case in cases]
    with torch.inference_mode():
        calls = [max(3, int(SAMPLE_US / sample_us(network, x, 20))) for network, x in built]
        print("ready", flush=True)
        for line in sys.stdin:
            number = int(line)
            print(sample_us(*built[number], calls[number]), flush=True)


if __name__ == "__main__":
    main()
