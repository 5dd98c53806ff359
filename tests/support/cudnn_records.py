"""Algorithms of cuDNN for tests without a GPU: plans that were timed on an H200, and an invented list."""

import json

from repository import ROOT

from autotune.cudnn_algorithms import Algorithm


def recorded():
    """Yield plans that were timed on an H200, as algorithms of the forward pass."""
    layer = json.loads((ROOT / "benchmarks" / "layers-resnet-nvidia-h200.json").read_text())["layers"][0]
    for trial in layer["trials"]:
        if trial["side"] == "cudnn":
            plan, us = trial["plan"], trial["us"]
            status = "ok" if us else "failed"
            values = {"workspace_bytes": plan["workspace_bytes"], "status": status, "reason": trial["reason"], "us": us}
            yield Algorithm("forward", "engine", plan["name"], f"engine {plan['engine']}", **values)


TEXT = "conv2d n=2 h=5 w=4 c=6 k=8 r=3 s=3 pad=1 dtype=f32 epilogue=bias,relu"
CONFIG = {"plan": "eng4_k24=26", "bias": "f32", "workspace_bytes": 0, "made_by": "cuDNN 9.19.0, frontend 1.28.0"}
"""A problem, and the config of a plan of it."""

CLASSIC = [
    Algorithm("forward", "classic", "0", "IMPLICIT_GEMM", 0, True, us=30.0, energy_uj=9e3),
    Algorithm("forward", "classic", "1", "IMPLICIT_PRECOMP_GEMM", 4096, True, us=12.0, energy_uj=8e3),
    Algorithm("forward", "classic", "4", "FFT", 5 << 20, True, status="unsupported", reason="NOT_SUPPORTED"),
    Algorithm("forward", "classic", "7", "WINOGRAD_NONFUSED", 3 << 20, False, us=11.0, energy_uj=9e4),
    Algorithm("backward-data", "classic", "1", "ALGO_1", 64, True, us=5.0),
]
