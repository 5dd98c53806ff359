"""A network of two layers, the kernels of its layers, and a device on which a table gives the time of each plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from databases import put_cpu, put_time, put_torch_kernel

from autotune.ir import INPUT, OUTPUT, CallerTensor, Layer, Network, NetworkKey, Operand, parse
from autotune.ir.operators import OperatorCall, TorchCall, ValueRef
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


def torch_relu(given: tuple[int, ...], result: tuple[int, ...] | None = None) -> TorchCall:
    """Return a call of torch's ReLU on an input x; result: the shape that it is said to have."""
    inputs, calls = (Operand("x", "input", given, "f32"),), (OperatorCall("aten.relu.default", (ValueRef(0),)),)
    shape = result or given
    return TorchCall(n=given[0], calls=calls, inputs=inputs, shape=shape, in_torch_order=("x",), dtype="f32")


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
    device = put_cpu(store)
    made: dict[tuple[str, int], int] = {}
    for name, c in LAYERS.items():
        for number in (0, 1):
            kernel = put_torch_kernel(store, json.dumps({"number": number, "c": c}))
            put_time(store, device, parse(PROBLEM.format(c=c)), kernel, 1.0 + number, final=True)
            made[name, number] = kernel
    return device, made
