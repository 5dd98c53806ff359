"""Measure the host time of a training step whose passes are replayed.

A replay computes nothing, so that what is timed is Dynamo, autograd and the
code that replays. The variants take turns: an autograd function that does
nothing, the replays behind AOTAutograd's function, the replays behind the
backend's own, and the same with gradients that the backward pass stores itself
(option direct_gradients). On a GPU autograd runs backward passes in a thread of
its own; the last column has the time without that thread, by
torch.autograd.set_multithreading_enabled(False).

Example:
  autotune step-overhead
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import fx, nn

from autotune.core import AutotuneError
from autotune_cli.command_line import add_device, add_model, positive, torch_device
from autotune_cli.models import load
from fused_resnet.training.recording import Run
from fused_resnet.training.replay import StepReplay

WARM_UP_STEPS = 5
"""The first steps run, record and replay both passes."""
ROUND_STEPS = 50
VARIANTS = {
    "empty": "an empty autograd function",
    "aot": "replays behind AOTAutograd's function",
    "own": "replays behind the backend's function",
    "direct": "the same with direct gradients",
}

Step = Callable[[torch.Tensor], torch.Tensor]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "se_resnet9_fixup", in_channels=False)
    parser.add_argument("--batch", type=positive, default=2, metavar="N", help="batch size (default 2)")
    parser.add_argument("--rounds", type=positive, default=40, metavar="N", help="rounds of 50 steps (default 40)")
    add_device(parser)


def main(args: argparse.Namespace) -> None:
    shape, device = tuple(args.input) if args.input else None, torch_device(args.device)
    threads = (True, False) if device.type == "cuda" else (True,)
    runs = {}
    for variant in VARIANTS:
        model = load(args.model, shape, None)
        network = model.module.train().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = torch.randn(args.batch, *model.shape, device=device)
        runs[variant] = repeated(network, step_of(variant, network), x)
    count = len(list(network.parameters()))
    times: dict[tuple[str, bool], list[float]] = {}
    for _ in range(args.rounds):
        for variant, run in runs.items():
            for threaded in threads:
                with torch.autograd.set_multithreading_enabled(threaded):
                    times.setdefault((variant, threaded), []).append(run())
    table = Table(box=None, pad_edge=False)
    table.add_column(f"a step with {count} parameters")
    for heading in ("median, us", "10 %", "90 %", *(["one thread"] if False in threads else [])):
        table.add_column(heading, justify="right")
    for variant, about in VARIANTS.items():
        found = times[variant, True]
        low, *_, high = statistics.quantiles(found, n=10)
        medians = [statistics.median(times[variant, threaded]) for threaded in threads]
        table.add_row(about, *(f"{1e6 * one:.0f}" for one in (medians[0], low, high, *medians[1:])))
    Console(highlight=False).print(table)


def step_of(variant: str, network: nn.Module) -> Step:
    """Return the forward pass of a step, with gradients."""
    if variant == "empty":
        parameters = list(network.parameters())
        gradients = [torch.zeros_like(one) for one in parameters]

        class Empty(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
                return x.sum()

            @staticmethod
            def backward(ctx: Any, *_: torch.Tensor) -> Any:
                return None, *[one.detach() for one in gradients]

        apply: Any = Empty.apply
        return lambda x: apply(x, *parameters)
    replay = StepReplay(record_nothing)

    def backend(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        with torch._functorch.config.patch(enable_autograd_cache=False):  # a hit would not call `compile`
            compiled: Any = compile_fx(graph_module, list(example_inputs), replay.compile)
        step: Callable[..., Any] = replay.step(compiled, example_inputs, direct=variant == "direct")
        return compiled if variant == "aot" else step

    forward: Any = torch.compile(network, backend=backend, dynamic=False)
    return lambda x: forward(x).sum()


def record_nothing(run: Run, arguments: list[torch.Tensor]) -> tuple[Callable[[], object], Sequence[Any]]:
    """Record a pass such that its replay computes nothing."""
    results = run(list(arguments))
    return lambda: None, results


def repeated(network: nn.Module, step: Step, x: torch.Tensor) -> Callable[[], float]:
    """Return a function that runs ROUND_STEPS steps and returns the seconds of one."""
    parameters = list(network.parameters())

    def run(count: int = ROUND_STEPS) -> float:
        started = time.perf_counter()
        for _ in range(count):
            for parameter in parameters:
                parameter.grad = None
            step(x).backward()
        return (time.perf_counter() - started) / count

    run(WARM_UP_STEPS)
    if any(parameter.grad is None for parameter in parameters):
        raise AutotuneError("a parameter of the model has no gradient: the step cannot be compared")
    return run
