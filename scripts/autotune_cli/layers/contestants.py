"""The contestants of a layer: our tuned kernels, cuDNN's execution plans, and torch's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F

from autotune.core import DeviceFacts, device_name, measure_device
from autotune.ir import BYTE_FORMATS, DTYPES, Conv2d
from autotune.libraries import cudnn
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
        label: Unique among the contestants of a problem.
        bind: Returns what is timed.
        prove: Returns what is verified, if what is timed writes its result to other tensors; else None.
        plan: The execution plan of cuDNN.
    """

    side: str
    label: str
    bind: Callable[[], Runnable]
    prove: Callable[[], Runnable] | None = None
    plan: cudnn.ExecutionPlan | None = None


def our_contestants(case: CandidateBench, path: Path, most: int) -> tuple[dict[str, float], list[Contestant]]:
    """Return the device's rates, and the database's winner, its best kernels, and its best kernel of CUTLASS 2.x.

    The rates are measured now if the database has none.
    """
    with Store.open(path) as store:
        row = store.device(device_name(case.device))
        facts = row or _facts(case.device)
        rates = {"flops_per_us": facts.flops_per_us, "bytes_per_us": facts.bytes_per_us}
        ranking = store.ranking(row, str(case.problem)) if row else []
        ranking = [measured for measured in ranking if measured.kernel.library]
        kernels = [measured for measured in ranking if measured.kernel.family != cudnn.FAMILY][:most]
        labels = [format_config(measured) for measured in kernels]
        unique = [
            name if labels.count(name) == 1 else f"{name} {dict(measured.launch)}"
            for name, measured in zip(labels, kernels, strict=True)
        ]
        cutlass = [measured for measured in ranking if measured.kernel.family.startswith(CUTLASS)]
        ranked = [("tuned", f"the tuner's choice: {format_config(measured)}", measured) for measured in ranking[:1]]
        ranked += [("cutlass2", f"CUTLASS 2.x: {format_config(measured)}", measured) for measured in cutlass[:1]]
        ranked += [("ours", name, measured) for name, measured in zip(unique, kernels, strict=True)]
        found = [(side, name, candidate(store, measured.kernel, measured.launch)) for side, name, measured in ranked]
    return rates, [Contestant(side, name, lambda c=c: case.bind(c)) for side, name, c in found]  # type: ignore[misc]


@cache
def _facts(device: torch.device) -> DeviceFacts:
    return measure_device(device)


def plan_contestants(case: CandidateBench, found: cudnn.FoundPlans) -> Iterator[Contestant]:
    """Yield all plans of cuDNN, also those that cannot run."""
    for plan in found.plans:
        yield Contestant("cudnn", str(plan), lambda p=plan: found.bind(p, case.tensors, case.scalars), plan=plan)  # type: ignore[misc]


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
        yield Contestant("torch", name, bind, prove)
