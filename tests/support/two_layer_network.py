"""A network of two layers, the kernels of its layers, and a device on which a table gives the time of each plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autotune.core import device_name
from autotune.ir import INPUT, OUTPUT, CallerTensor, Layer, Network, NetworkKey, parse
from autotune.measure import LayerAssignment, Result
from tuning_db import Store
from tuning_db.schema import Device

PROBLEM = "conv2d n=2 h=4 w=4 c={c} k=8 dtype=f32"
LAYERS = {"first": 8, "second": 16}
"""Name -> channels, so that each has a problem of its own."""
NETWORK = Network(
    NetworkKey("net"),
    tuple(
        Layer(name, parse(PROBLEM.format(c=c)), {"x": x, "y": y}, {"weight": f"{name}.weight"})
        for (name, c), (x, y) in zip(LAYERS.items(), [(INPUT, "between"), ("between", OUTPUT)], strict=True)
    ),
    (CallerTensor((2, 8, 4, 4), "f32"),),
    (CallerTensor((2, 8, 4, 4), "f32"),),
)
VALLEYS = {(0, 0): 10.0, (0, 1): 12.0, (1, 0): 11.0, (1, 1): 8.0}
"""Times of plans: from the winners no single change is an improvement, and still there is a faster plan."""


class TableDevice:
    """Stands for the worker: us says how long a plan takes, by the numbers of its layers' configs."""

    def __init__(self, us: Mapping[Any, Any]) -> None:
        self.us = us

    def time_networks(self, network: Network, plans: Sequence[Sequence[LayerAssignment]], rounds: int) -> list[Result]:
        times = [self.us[tuple(json.loads(pick.candidate.config)["number"] for pick in plan)] for plan in plans]
        return [Result("ok", median_us=us, spread_us=0.1, samples_us=[us]) for us in times]


def put_kernels(store: Store) -> tuple[Device, dict[tuple[str, int], int]]:
    """Add this CPU and two kernels for each layer, of which number 0 is faster alone.

    Returns:
        The device, and the ids of the kernels by (layer, number).
    """
    device = store.put_device(device_name(torch.device("cpu")), "cpu", flops_per_us=1.0, bytes_per_us=1.0)
    made: dict[tuple[str, int], int] = {}
    for name, c in LAYERS.items():
        for number in (0, 1):
            identity = {"family": "torch", "config": json.dumps({"number": number, "c": c}), "dtype": "f32"}
            row = store.put_kernel(identity | {"epilogue": "none", "target": "any", "source": ""}, symbol="")
            store.put_measurement(
                device_id=device.id,
                problem_id=store.put_problem(str(parse(PROBLEM.format(c=c)))).id,
                kernel_id=row.id,
                status="ok",
                median_us=1.0 + number,
                final=True,
            )
            made[name, number] = row.id
    return device, made
