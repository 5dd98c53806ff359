"""Time calls of FusedResNet for `compare_checkouts`; run as a script, with one checkout on PYTHONPATH.

It uses only what every version of the project has, because it runs with the modules of the checkout under test.
Arguments: a JSON list of cases, each {"model", "batch", "db", "kind"}. For each line on standard input, the number
of a case, it prints the microseconds of one call, measured over back-to-back calls. Without a GPU it measures on the
CPU.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from fused_resnet import FusedResNet

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SAMPLE_US = 20_000.0
"""Time of one sample: long against the switch from the other checkout's process."""


def build(case: dict[str, str]) -> Callable[[], torch.Tensor]:
    """Return what runs a case once, and its result."""
    torch.manual_seed(0)
    size = 64 if case["model"] == "se_resnet9_fixup" else 224
    shape = (int(case["batch"]), 3, size, size)
    return build_step(case, shape) if case["kind"] == "step" else build_network(case, shape)


def build_network(case: dict[str, str], shape: tuple[int, ...]) -> Callable[[], torch.Tensor]:
    if case["model"] == "se_resnet9_fixup":
        network = FusedResNet(case["db"])
        randomize(network)
    elif case["kind"] == "int8":
        images = [torch.randn(8, *shape[1:]).to(DEVICE) for _ in range(2)]
        module = torchvision_model(case["model"]).eval().to(DEVICE)
        network = FusedResNet.from_model(module, case["db"], precision="int8", calibration=images)
    else:
        network = FusedResNet.from_model(torchvision_model(case["model"]).eval(), case["db"])
    dtype = torch.float16 if DEVICE == "cuda" else torch.float32
    network, x = network.to(DEVICE, dtype).eval(), torch.randn(shape).to(DEVICE, dtype)

    def run() -> torch.Tensor:
        with torch.inference_mode():
            result: torch.Tensor = network(x)
        return result

    return run


def build_step(case: dict[str, str], shape: tuple[int, ...]) -> Callable[[], torch.Tensor]:
    """Return a forward and a backward pass; its result is the loss."""
    if case["model"] == "se_resnet9_fixup":
        model: torch.nn.Module = FusedResNet(case["db"])
        randomize(model)
    else:
        model = torchvision_model(case["model"])
    channels_last: dict[str, Any] = {"memory_format": torch.channels_last}  # unknown to torch's annotation of Module.to
    model = model.to(DEVICE, **channels_last).train()
    step: Callable[[torch.Tensor], torch.Tensor] = model
    if case["model"] != "se_resnet9_fixup":
        step = torch.compile(model, backend="autotune", dynamic=False, options={"tuning_db": case["db"]})
    x = torch.randn(shape).to(DEVICE, **channels_last)
    parameters = list(model.parameters())

    def run() -> torch.Tensor:
        for parameter in parameters:
            parameter.grad = None
        with torch.autocast(DEVICE, torch.float16, enabled=DEVICE == "cuda"):
            loss: torch.Tensor = step(x).float().square().mean()
        torch.autograd.backward(loss)
        return loss.detach()

    return run


def torchvision_model(name: str) -> torch.nn.Module:
    import torchvision

    model: torch.nn.Module = getattr(torchvision.models, name.removeprefix("torchvision:"))()
    return model


@torch.no_grad()
def randomize(module: torch.nn.Module) -> None:
    """Give parameters random values: some start as zero, and zeros take less power."""
    for tensor in module.parameters():
        tensor.copy_(0.05 * torch.randn_like(tensor))


def sample_us(run: Callable[[], torch.Tensor], calls: int) -> float:
    for _ in range(max(3, calls // 4)):  # clocks and caches after the other process
        y = run()
    clock = _device_clock if DEVICE == "cuda" else _host_clock
    elapsed_us = clock()
    for _ in range(calls):
        y = run()
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
    runs = [build(case) for case in cases]
    calls = [max(3, int(SAMPLE_US / sample_us(run, 20))) for run in runs]
    print("ready", flush=True)
    for line in sys.stdin:
        number = int(line)
        print(sample_us(runs[number], calls[number]), flush=True)


if __name__ == "__main__":
    main()
