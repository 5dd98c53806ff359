"""The variants that `autotune bench --train` times: one training step, forward and backward, without an optimizer.

A step computes the loss and the gradient of every parameter. The loss is the sum of squares of all results over the
batch size, so that gradients in float16 neither overflow nor vanish.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autotune_cli.baselines import BaselineInput, Forward, Variant, flat, record_graph
from fused_resnet.compile_backend import autotune

Loss = Callable[[Tensor], Tensor]
"""Returns the loss for an input."""


def loss_of(network: nn.Module, amp: torch.dtype | None = None) -> Loss:
    """Return the forward pass of a step.

    Args:
        network: The network.
        amp: The dtype of torch.autocast; None without.
    """

    def loss(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, amp, enabled=amp is not None):
            results = [one for one in tree_leaves(network(x)) if isinstance(one, Tensor)]
        return sum((one.float().square().sum() for one in results), torch.zeros((), device=x.device)) / len(x)

    return loss


def step(network: nn.Module, loss: Loss, x: Tensor) -> Forward:
    """Return a function that computes the gradients of all parameters and returns them."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]

    def run() -> object:
        for parameter in parameters:
            parameter.grad = None
        with torch.enable_grad():
            loss(x).backward()
        return [parameter.grad for parameter in parameters]

    return run


def eager(case: BaselineInput) -> Forward:
    network = case.eager()
    return step(network, loss_of(network, case.amp), case.x)


def channels_last(case: BaselineInput) -> Forward:
    network, x = case.nhwc()
    return step(network, loss_of(network, case.amp), x)


def cuda_graph(case: BaselineInput) -> Forward:
    """Return a step as a CUDA graph; the input lies in the graph's buffer."""
    network, x = case.nhwc()
    graph, gradients = record_graph(step(network, loss_of(network, case.amp), x))

    def replay() -> object:
        graph.replay()
        return gradients

    return replay


def compiled(mode: str) -> Callable[[BaselineInput], Forward]:
    """Return a variant that torch.compile compiles in a mode."""

    def build(case: BaselineInput) -> Forward:
        network, x = case.nhwc()
        return step(network, torch.compile(loss_of(network, case.amp), dynamic=False, mode=mode), x)

    return build


def fused(**options: Any) -> Callable[[BaselineInput], Forward]:
    """Return a variant that the backend compiles with some options."""

    def build(case: BaselineInput) -> Forward:
        network, x = case.nhwc()
        chosen: Any = {"tuning_db": case.database, **options}
        loss = torch.compile(loss_of(network, case.amp), backend=autotune, dynamic=False, options=chosen)
        return step(network, loss, x)

    return build


STEPS = [
    Variant("eager", "eager", "NCHW", eager),
    Variant("channels_last", "eager, channels_last", "NHWC", channels_last),
    Variant("cuda_graph", "channels_last + CUDA graph", "NHWC", cuda_graph, gpu_only=True),
    Variant("compile", "torch.compile", "NHWC", compiled("default")),
    Variant("compile_reduce", "torch.compile reduce-overhead", "NHWC", compiled("reduce-overhead"), gpu_only=True),
    Variant("compile_max", "torch.compile max-autotune", "NHWC", compiled("max-autotune")),
    Variant("fused", "torch.compile autotune", "NHWC", fused(), is_fused=True, reads_database=True),
    Variant(
        "fused_direct",
        "autotune, direct gradients",
        "NHWC",
        fused(direct_gradients=True),
        is_fused=True,
        gpu_only=True,
        reads_database=True,
    ),
]


def gradients(module: nn.Module, x: Tensor) -> Tensor:
    """Return the gradients of a step in float32 without TF32, for an input in float32 in float64, in one tensor."""
    dtype = torch.float64 if x.dtype == torch.float32 else torch.float32
    exact = copy.deepcopy(module).to(x.device, dtype).train()
    with torch.backends.cudnn.flags(allow_tf32=False):
        return flat(step(exact, loss_of(exact), x.to(dtype))())
