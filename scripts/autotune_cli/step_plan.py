"""The end of `autotune tune --train`: the step as a whole.

On a GPU its kernels are chosen inside the whole step. On a CPU the step is compared with the step as torch runs it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from rich.console import Console

from autotune.core import Deadline, device_name
from autotune.ir import DTYPES
from autotune_cli.record import one_line
from autotune_cli.step_request import StepRequest
from fused_resnet.precisions import TF32
from fused_resnet.training import step_problems
from fused_resnet.training.kernels.step_plans import step_key
from fused_resnet.training.step_comparison import compare_step, compared_text
from fused_resnet.training.step_tuner import tune_step_plan
from fused_resnet.training.trained_step import TrainedModule
from tuning_db import Store
from tuning_db.schema import Device, PlanRow


def settle(
    console: Console, store: Store, location: str, request: StepRequest, device: torch.device, until: Deadline
) -> None:
    """Choose the kernels of a step or compare it with torch, record the result, and print it.

    Args:
        console: Where it is printed.
        store: The database, in which the problems of the step were tuned.
        location: Its path or URL.
        request: The step.
        device: The device.
        until: Deadline of the search or comparison.
    """
    row, plan, reason = store.device(device_name(device)), None, "none of them runs in the step"
    if until.is_over or row is None:
        reason = "the budget has ended"
    else:
        torch._dynamo.reset()  # which compiles only some steps of one class
        with (
            console.status("timing the whole step"),
            torch.backends.cudnn.flags(allow_tf32=request.precision == TF32),
        ):
            try:
                plan = _plan(store, location, request, row, device, until)
            except Exception as error:  # compiling may fail in any way, and the problems are tuned
                reason = one_line(error)
    if plan is None:
        console.print(f"The kernels run as they are the fastest alone: {reason}", highlight=False, markup=False)
        return
    text = chosen_text(plan) if device.type == "cuda" else compared_text(plan)
    console.print(f"[bold]{request.title}:[/] {text}", highlight=False)


def _plan(
    store: Store, location: str, request: StepRequest, row: Device, device: torch.device, until: Deadline
) -> PlanRow | None:
    trained = _trained(request, device)
    names = request.model.name, request.batch, request.dtype
    if device.type == "cuda":
        return tune_step_plan(store, location, row, trained, step_key(*names, request.problems), until)
    found = step_problems(trained.module, trained.inputs, trained.autocast)
    return compare_step(store, location, row, trained, step_key(*names, found.of_layers), until)


def chosen_text(plan: PlanRow) -> str:
    """Return a sentence about the plan of a step whose kernels were chosen inside the whole step."""
    gain = plan.details["alone_us"] / plan.median_us
    than = "with the kernels that are the fastest alone"
    return f"{plan.median_us:.1f} us as one CUDA graph, {gain:.3f}x faster than {than}"


def _trained(request: StepRequest, device: torch.device) -> TrainedModule:
    module: Any = copy.deepcopy(request.model.module).requires_grad_().train()  # Any: no stub has memory_format
    x = torch.randn(request.batch, *request.model.shape, device=device)
    layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    return TrainedModule(
        module.to(device, memory_format=torch.channels_last),
        (x.contiguous(memory_format=layout),),
        DTYPES[request.dtype] if request.dtype != "f32" else None,
    )
