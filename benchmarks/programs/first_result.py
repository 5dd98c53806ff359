"""Measures the time to a network's first result in this new process, and prints seconds by stage as JSON.

`bench_host.py` runs it. What torch does once in a process, such as creating the CUDA context, is not counted.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

DOORS = ("torch.compile", "from_model")
"""The ways to run a model on tuned kernels: torch.compile(backend="autotune") and FusedResNet.from_model."""
TOTAL = "total"
BEFORE = "before the backend"
"""The part of torch.compile's time that passes before it calls the backend: torch's imports and Dynamo's tracing."""

STAGES = ("imports", "making the module", "choosing and binding", "the first run")
"""Those of the default network, which is loaded without a model in torch, from `import torch` on."""
READING = "of which reading"
"""A part of choosing and binding, which is repeated at the end to time it alone."""


def main(door: str, model: str, shape: str, database: str, batch: int, device_name: str) -> dict[str, float]:
    """Return the seconds of each stage.

    Args:
        door: One of DOORS; empty for the default network by itself.
        model: The model, as --model.
        shape: Shape of one sample, "C,H,W"; empty for the model's usual one.
        database: The tuning database.
        batch: Batch size.
        device_name: The device.
    """
    device = torch.device(device_name)
    dtype = torch.float16 if device.type == "cuda" else torch.float32

    def images(*sizes: int) -> torch.Tensor:
        x = torch.randn(batch, *sizes).to(device, dtype)
        (x + x).sum().item()
        return x

    if not door:
        return _loaded(database, images(3, 64, 64))

    from autotune_cli.models import load

    found = load(model, tuple(map(int, shape.split(","))) if shape else None, None)
    module = found.module.to(device, dtype)
    return _captured(door, module, database, images(*found.shape))


def _loaded(database: str, x: torch.Tensor) -> dict[str, float]:
    """Return the seconds of STAGES, in order, and of READING."""
    clock = [time.perf_counter()]
    from fused_resnet import FusedResNet

    clock.append(time.perf_counter())
    network = FusedResNet(database).to(x)
    clock.append(time.perf_counter())
    network._bound(x)
    clock.append(time.perf_counter())
    network(x).sum().item()
    clock.append(time.perf_counter())
    seconds = {stage: clock[i + 1] - clock[i] for i, stage in enumerate(STAGES)}

    from autotune.runtime.selection import choices, select
    from tuning_db import open_reader

    start = time.perf_counter()
    with open_reader(database) as found:
        layers, settled = select(found, network._network(x), x.device)
        for layer in layers:
            if layer.name not in settled:
                next(choices(found, layer.problem, x.device))
    return {**seconds, READING: time.perf_counter() - start}


def _captured(door: str, module: torch.nn.Module, database: str, x: torch.Tensor) -> dict[str, float]:
    """Return the seconds from a model in torch to its first result as TOTAL, and for torch.compile those of BEFORE."""
    from fused_resnet import FusedResNet
    from fused_resnet.compile_backend import autotune

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
    _, door, model, shape, database, batch, device_name = sys.argv
    print(json.dumps(main(door, model, shape, database, int(batch), device_name)))
