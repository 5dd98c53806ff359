"""The end of `autotune tune --train`: the kernels of the step are chosen inside the whole step, on a GPU."""

from __future__ import annotations

import copy
from typing import Any

import torch
from rich.console import Console

from autotune.core import Deadline, device_name
from autotune.ir import DTYPES
from autotune_cli.record import one_line
from autotune_cli.tune_request import StepRequest
from fused_resnet.precisions import TF32
from fused_resnet.training.step_plans import step_key
from fused_resnet.training.step_tuner import TrainedModule, tune_step_plan
from tuning_db import Store


def settle(
    console: Console, store: Store, location: str, request: StepRequest, device: torch.device, until: Deadline
) -> None:
    """Choose and record the kernels of a step, and print the result.

    Args:
        console: Where it is printed.
        store: The database, in which the problems of the step were tuned.
        location: Its path or URL.
        request: The step.
        device: The GPU.
        until: Deadline of the search.
    """
    key = step_key(request.model.name, request.batch, request.dtype, request.problems)
    row, plan, reason = store.device(device_name(device)), None, "none of them runs in the step"
    if until.is_over or row is None:
        reason = "the budget has ended"
    else:
        torch._dynamo.reset()  # which compiles only some steps of one class
        with (
            console.status("choosing kernels inside the whole step"),
            torch.backends.cudnn.flags(allow_tf32=request.precision == TF32),
        ):
            try:
                plan = tune_step_plan(store, location, row, _trained(request, device), key, until)
            except Exception as error:  # compiling may fail in any way, and the problems are tuned
                reason = one_line(error)
    if plan is None:
        console.print(f"The kernels run as they are the fastest alone: {reason}", highlight=False, markup=False)
        return
    gain = plan.details["alone_us"] / plan.median_us
    console.print(
        f"[bold]{request.title}:[/] {plan.median_us:.1f} us as one CUDA graph, {gain:.3f}x faster than with the "
        "kernels that are the fastest alone",
        highlight=False,
    )


def _trained(request: StepRequest, device: torch.device) -> TrainedModule:
    module: Any = copy.deepcopy(request.model.module).requires_grad_().train()  # Any: no stub has memory_format
    x = torch.randn(request.batch, *request.model.shape, device=device)
    layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    return TrainedModule(
        module.to(device, memory_format=torch.channels_last),
        (x.contiguous(memory_format=layout),),
        DTYPES[request.dtype] if request.dtype != "f32" else None,
    )
