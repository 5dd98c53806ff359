"""Measures the time from a model in torch to its first result in this new process, and prints seconds as JSON.

`bench_host.py` runs it. What torch does once in a process, such as creating the CUDA context, is not counted.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from autotune_cli.models import load
from fused_resnet import FusedResNet
from fused_resnet.compile_backend import autotune

DOORS = ("torch.compile", "from_model")
"""The ways to run a model on tuned kernels: torch.compile(backend="autotune") and FusedResNet.from_model."""
TOTAL = "total"
BEFORE = "before the backend"
"""The part of torch.compile's time that passes before it calls the backend: torch's imports and Dynamo's tracing."""


def main(door: str, name: str, shape: str, database: str, batch: int, device_name: str) -> dict[str, float]:
    """Return the seconds as TOTAL, and for torch.compile those of BEFORE.

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
    seconds: dict[str, float] = {}

    def backend(*arguments: Any, **keywords: Any) -> Any:
        seconds[BEFORE] = time.perf_counter() - started
        return autotune(*arguments, **keywords)

    started = time.perf_counter()
    with torch.inference_mode():
        if door == "from_model":
            result = FusedResNet.from_model(module, database)(x)
        else:
            result = torch.compile(module, backend=backend, options={"tuning_db": database})(x)
        result.sum().item()
    return {TOTAL: time.perf_counter() - started, **seconds}


if __name__ == "__main__":
    _, door, name, shape, database, batch, device = sys.argv
    print(json.dumps(main(door, name, shape, database, int(batch), device)))
