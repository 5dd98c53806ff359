"""Measures the time from `import torch` to a first result in this new process, and prints seconds by stage as JSON.

`bench_host.py` runs it. What torch does once in a process, such as creating the CUDA context, is not counted.
"""

from __future__ import annotations

import json
import sys
import time

import torch

STAGES = ("imports", "making the module", "choosing and binding", "the first run")
READING = "of which reading"
"""A part of choosing and binding, which is repeated at the end to time it alone."""


def main(database: str, batch: int, name: str) -> dict[str, float]:
    """Return the seconds of STAGES, in order, and of READING."""
    device = torch.device(name)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    x = torch.randn(batch, 3, 64, 64).to(device, dtype)
    (x + x).sum().item()

    clock = [time.perf_counter()]
    from fused_resnet import FusedResNet

    clock.append(time.perf_counter())
    network = FusedResNet(database).to(device, dtype)
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
        layers, settled = select(found, network._network(x), device)
        for layer in layers:
            if layer.name not in settled:
                next(choices(found, layer.problem, device))
    return {**seconds, READING: time.perf_counter() - start}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
