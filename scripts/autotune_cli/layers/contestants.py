"""The contestants of a layer: our tuned kernels, cuDNN's execution plans, and torch's operators.

An input gradient with stride 1 is a convolution, too. Kernels and plans of both problems are contestants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F

from autotune.core import DeviceFacts, device_name, measure_device
from autotune.ir import BYTE_FORMATS, DTYPES
from autotune.ir.operators import Conv2d, Conv2dDgrad, Conv2dWgrad, Convolution
from autotune.libraries import aten, cudnn
from autotune.measure import CandidateBench, Runnable
from autotune.runtime import candidate
from autotune.tuner import format_config
from tuning_db import Store

Tensors = dict[str, torch.Tensor]
CUTLASS = "cutlass2_"  # how the names of its families begin


@dataclass(frozen=True)
class Contestant:
    """A way to solve a problem.

    Attributes:
        side: "ours", "tuned", "cudnn", "cutlass2" or "torch".
        label: Unique among the contestants of a layer.
        case: The operands and the reference of its problem.
        bind: Returns what is timed.
        prove: Returns what is verified, if what is timed writes its result to other tensors; else None.
        plan: The execution plan of cuDNN.
    """

    side: str
    label: str
    case: CandidateBench
    bind: Callable[[], Runnable]
    prove: Callable[[], Runnable] | None = None
    plan: cudnn.ExecutionPlan | None = None


def our_contestants(
    cases: Sequence[CandidateBench], path: Path, most: int
) -> tuple[dict[str, float], list[Contestant]]:
    """Return the device's rates, and the database's winner, its best kernels, and its best kernel of CUTLASS 2.x.

    The rates are measured now if the database has none.

    Args:
        cases: A layer's problem, and the other form of the same pass if there is one.
        path: The database.
        most: Number of kernels.
    """
    device = cases[0].device
    with Store.open(path) as store:
        row = store.device(device_name(device))
        facts = row or _facts(device)
        rates = {"flops_per_us": facts.flops_per_us, "bytes_per_us": facts.bytes_per_us}
        timed = [(one, case) for case in cases for one in (store.ranking(row, str(case.problem)) if row else [])]
        ranking = [pair for pair in timed if pair[0].kernel.library]
        if len(cases) > 1:
            ranking.sort(key=lambda pair: pair[0].median_us or math.inf)
        kernels = [pair for pair in ranking if pair[0].kernel.family != cudnn.FAMILY][:most]
        cutlass = [pair for pair in ranking if pair[0].kernel.family.startswith(CUTLASS)]
        labels = [format_config(measured) for measured, _ in kernels]
        ranked = [("tuned", f"the tuner's choice: {format_config(one)}", one, case) for one, case in ranking[:1]]
        ranked += [("cutlass2", f"CUTLASS 2.x: {format_config(one)}", one, case) for one, case in cutlass[:1]]
        ranked += [
            ("ours", name if labels.count(name) == 1 else f"{name} {dict(one.launch)}", one, case)
            for name, (one, case) in zip(labels, kernels, strict=True)
        ]
        found = [(side, name, case, candidate(store, one.kernel, one.launch)) for side, name, one, case in ranked]
    return rates, [Contestant(side, name, case, lambda c=case, k=k: c.bind(k)) for side, name, case, k in found]  # type: ignore[misc]


@cache
def _facts(device: torch.device) -> DeviceFacts:
    return measure_device(device)


def plan_contestants(case: CandidateBench, found: cudnn.FoundPlans, suffix: str = "") -> Iterator[Contestant]:
    """Yield all plans of cuDNN, also those that cannot run; their labels end with the suffix."""
    for plan in found.plans:
        bind = lambda plan=plan: found.bind(plan, case.tensors, case.scalars)  # noqa: E731
        yield Contestant("cudnn", f"{plan}{suffix}", case, bind, plan=plan)


class _TorchOperator:
    """A call of torch, which allocates its results; they are copied to `outputs` if these are given."""

    def __init__(self, call: Callable[[], Tensors], outputs: Tensors | None = None) -> None:
        self._call, self._outputs = call, outputs or {}

    def run(self, stream: int = 0) -> None:
        """Run on torch's current stream."""
        results = self._call()
        for name, output in self._outputs.items():
            output.copy_(results[name])


def torch_contestants(case: CandidateBench) -> Iterator[Contestant]:
    """Yield torch's convolution followed by the epilogue's operators, and the fused operator if torch has one.

    Torch has no convolution of bytes on a GPU.
    """
    problem = case.problem
    if isinstance(problem, Conv2dDgrad | Conv2dWgrad):
        yield _torch_gradient(case)
    if not isinstance(problem, Conv2d) or problem.dtype in BYTE_FORMATS:
        return
    dtype = DTYPES[problem.dtype]
    given = {name: tensor.to(dtype) for name, tensor in case.tensors.items()}  # also the biases, as in a user's module
    x, weight = given["x"].permute(0, 3, 1, 2), given["weight"].contiguous(memory_format=torch.channels_last)
    geometry = (problem.stride, problem.pad, problem.dilation, problem.groups)
    names = problem.epilogue.names
    operand = {a.name.rstrip("0123456789"): given[a.name] for a in problem.epilogue.arguments if a.kind != "scalar"}

    def fused() -> Tensors:
        y = torch.cudnn_convolution_relu(x, weight, operand.get("bias"), *geometry)
        return {"y": y.permute(0, 2, 3, 1)}

    def fused_add() -> Tensors:
        added = operand["add"].permute(0, 3, 1, 2)
        y = torch.cudnn_convolution_add_relu(x, weight, added, 1.0, operand.get("bias"), *geometry)
        return {"y": y.permute(0, 2, 3, 1)}

    def plain() -> Tensors:
        y = F.conv2d(x, weight, None, *geometry).permute(0, 2, 3, 1)
        y, stored = problem.epilogue.apply(y, given, case.scalars)
        return {"y": y, **stored}

    calls = {" + ".join(["conv2d", *names]): plain}
    if names in (("bias", "relu"), ("relu",)):
        calls["cudnn_convolution_relu"] = fused
    elif names in (("bias", "add", "relu"), ("add", "bias", "relu"), ("add", "relu")):
        calls["cudnn_convolution_add_relu"] = fused_add
    outputs = {name: case.tensors[name] for name in case.expected}
    for name, call in calls.items():
        bind, prove = (lambda c=call: _TorchOperator(c)), (lambda c=call: _TorchOperator(c, outputs))
        yield Contestant("torch", name, case, bind, prove)


def _torch_gradient(case: CandidateBench) -> Contestant:
    """Return torch's operator for an input gradient or a weight gradient, with channels-last operands."""
    assert isinstance(case.problem, Convolution)
    gradient = aten.convolution(case.problem, torch.channels_last, case.tensors)

    def call() -> Tensors:
        return {"y": gradient(case.tensors).permute(0, 2, 3, 1)}

    outputs = {"y": case.tensors["y"]}
    return Contestant(
        "torch", "convolution_backward", case, lambda: _TorchOperator(call), lambda: _TorchOperator(call, outputs)
    )
