"""Measures the time from a model in torch to its first result in this new process, and prints the seconds.

`autotune bench-host` runs it. What torch does once in a process, such as creating the CUDA context, is not counted.
"""

from __future__ import annotations

import sys
import time

import torch

from autotune_cli.models import load
from fused_resnet import FusedResNet
from fused_resnet.compile_backend import autotune

DOORS = ("torch.compile", "from_model")
"""The ways to run a model on tuned kernels: torch.compile(backend="autotune") and FusedResNet.from_model."""


def main(door: str, name: str, shape: str, database: str, batch: int, device_name: str) -> float:
    """Return the seconds.

    Args:
        door: One of DOORS.
        name: The model, as --model.
        shape: Shape of one sample, "C,H,W"; empty for the model's usual one.
        database: The tuning database.
        batch: Batch size.
        device_name: The device.
    """
    device = torch.device(device_name)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    model = load(name, tuple(map(int, shape.split(","))) if shape else None, None)
    module = model.module.to(device, dtype)
    x = torch.randn(batch, *model.shape).to(device, dtype)
    (x + x).sum().item()
    started = time.perf_counter()
    with torch.inference_mode():
        if door == "from_model":
            result = FusedResNet.from_model(module, database)(x)
        else:
            result = torch.compile(module, backend=autotune, options={"tuning_db": database})(x)
        result.sum().item()
    return time.perf_counter() - started


if __name__ == "__main__":
    _, door, name, shape, database, batch, device = sys.argv
    print(main(door, name, shape, database, int(batch), device))
