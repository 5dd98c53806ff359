"""A FusedResNet for the profiler: its layers run one after the other, each in a range, outside any CUDA graph."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.profiler import record_function

from autotune.families import families
from autotune.profiling import KERNEL, MODULE, Subject
from autotune.runtime import BoundLayer
from fused_resnet import FusedResNet


def of_fused(network: FusedResNet, x: torch.Tensor) -> Subject:
    """Return the subject that profiles a FusedResNet layer by layer, for inputs like x."""
    given, context, stream = network._bound(x)
    plan = context.plan
    layers_run = context.singly(given, [torch.empty_like(one) for one in context.templates], stream)

    def call() -> None:
        for run in layers_run:
            run()

    def marked() -> None:
        with record_function(MODULE):
            for bound, run in zip(plan.bound, layers_run, strict=True):
                with record_function(MODULE + bound.layer.name), _kernel_range(bound):
                    run()

    modules = {"": type(network).__name__} | {bound.layer.name: bound.layer.problem.operator for bound in plan.bound}
    layers = {bound.layer.name: _about(bound) for bound in plan.bound}
    return Subject(call, marked, nullcontext, modules, layers, as_used=lambda: network(x))


def _kernel_range(bound: BoundLayer) -> AbstractContextManager[object]:
    """Return a range for a native kernel; torch's operators have ranges of their own."""
    return record_function(KERNEL + bound.choice.candidate.symbol) if bound.step.kernel else nullcontext()


def _about(bound: BoundLayer) -> dict[str, Any]:
    candidate, problem = bound.choice.candidate, bound.layer.problem
    about: dict[str, Any] = {
        "symbol": candidate.symbol,
        "candidate": str(candidate),
        "family": candidate.family,
        "config": json.loads(candidate.config),
        "launch": dict(candidate.launch),
        "source": bound.choice.source,
        "problem": str(problem),
        "flops": problem.flops,
        "bytes": problem.bytes,
    }
    if bound.step.kernel and (found := families().get(candidate.family)):  # None if this version does not have it
        about["template"] = f"templates/{found.template}"
    return about
