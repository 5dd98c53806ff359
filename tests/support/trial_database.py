"""A small database of two layers, with known times, for tests of what reports read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tuning_db import Store

DEVICE = {"flops_per_us": 16e6, "bytes_per_us": 1e6}
"""16 TFLOP/s and 1 TB/s."""

POINTWISE = "conv2d n=2 h=8 w=8 c=16 k=16 r=1 s=1 stride=1,1 pad=0,0 dilation=1,1 groups=1 dtype=f16 epilogue=none"
WIDE = "conv2d n=2 h=8 w=8 c=512 k=512 r=3 s=3 stride=1,1 pad=1,1 dilation=1,1 groups=1 dtype=f16 epilogue=none"
HOSTILE = "</script><script>document.title='changed'</script>"
"""A message of a failure that must stay text."""

STATE = {"sm_mhz": 1980, "memory_mhz": 3201, "celsius": 40, "watts": 300.5, "throttle_reasons": ["power cap"]}


def make(path: Path, factor: float = 1.0) -> None:
    """Write the database; all times are multiplied by `factor`.

    POINTWISE has 48 trials of a family, whose time depends on the tile alone, one of cuDNN, one of torch, one that is
    wrong, and two kernels that do not compile. WIDE has one trial.
    """
    with Store.create(path) as store:
        store.put_environment({"torch": "2.9", "cuda": "13.0"})
        device = store.put_device("test GPU", "sm_90", details={"sms": 132}, **DEVICE)

        def kernel(family: str, config: Mapping[str, object], error: str | None = None) -> int:
            identity = {"family": family, "config": json.dumps(config), "dtype": "f16", "epilogue": "none"}
            identity |= {"target": "sm_90", "source": "0"}
            return store.put_kernel(identity, symbol="s", error=error).id

        def trial(problem: str, kernel_id: int, us: float | None, **values: object) -> None:
            known = {"launch": {}, "details": {}, "status": "ok", "samples_us": [], "final": False, "error": None}
            known |= {"relative_error": 0.0, "spread_us": 0.1, "median_us": us and us * factor, **values}
            store.put_measurement(
                device_id=device.id, problem_id=store.put_problem(problem).id, kernel_id=kernel_id, **known
            )

        tiles = {tile: [kernel("tiled", {"tile": tile, "stages": n}) for n in range(12)] for tile in (16, 32, 64, 128)}
        for tile, kernels in tiles.items():
            for n, number in enumerate(kernels):
                seconds = {"compile": 2.0, "verify": 0.25, "time": 0.5}
                us = 10.0 + abs(tile - 64) + 0.01 * n
                trial(POINTWISE, number, us, details={"seconds": seconds, "state": STATE}, launch={"grid": n % 2})
        trial(POINTWISE, kernel("cudnn", {"plan": "eng1_k2=3", "bias": None}), 15.0)
        trial(POINTWISE, kernel("aten", {"memory_format": "channels_last"}), 20.0)
        trial(POINTWISE, tiles[16][0], None, status="wrong", error=HOSTILE, launch={"grid": 9})
        for broken in (1, 2):
            kernel("tiled", {"tile": 256, "stages": broken}, error="too much shared memory")
        trial(WIDE, tiles[128][0], 1000.0)
        choices = [
            {"layer": "first", "kernel": tiles[64][0], "launch": {"grid": 0}, "us": 10.0 * factor, "overlap": False},
            {"layer": "second", "kernel": tiles[128][0], "launch": {}, "us": 1000.0 * factor, "overlap": True},
            {"layer": "third", "kernel": tiles[32][0], "launch": {"grid": 0}, "us": 7.0 * factor, "overlap": True},
        ]
        details = {"alone_us": 1020.0 * factor, "alternatives": ["second.wide"], "torch_us": {"aten": 1500.0 * factor}}
        details["memory"] = [["%first", 0, 2**20, 0, 1], ["%second", 2**20, 2**19, 1, 2]]
        store.put_plan(
            device_id=device.id,
            network="Net n=2 dtype=f16 0123456789ab",
            median_us=1010.0 * factor,
            spread_us=2.0,
            choices=choices,
            details=details,
        )
