"""Compiles a graph of Dynamo for training: Inductor's code with tuned kernels in place of torch's convolutions.

A step that was faster without these kernels in the comparison of a tune runs as torch runs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import fx, nn

from autotune.core import CaptureError
from autotune.libraries import inductor
from fused_resnet.inductor_backend import by_inductor
from fused_resnet.training.graph_rewrite.norm_rewrite import rewrite_norms
from fused_resnet.training.graph_rewrite.rewrite import Rewrite
from fused_resnet.training.kernels.bound_problem import use
from fused_resnet.training.kernels.step_plans import EAGER, step_digest
from fused_resnet.training.kernels.winners import Winners
from fused_resnet.training.replay.replay import StepReplay
from fused_resnet.training.step_problems import StepProblems, graph_problems

Compiled = Callable[..., Any]


def trainable(module: nn.Module, winners: Winners, device: torch.device, graph: bool) -> Compiled:
    """Return a module as torch.compile runs it with gradients, compiled for each input shape.

    Args:
        module: The module.
        winners: The kernels for the first compilation.
        device: The device of its parameters and inputs.
        graph: As for `compile_step`.
    """
    unused = [winners]

    def backend(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        if not torch.is_grad_enabled():
            return graph_module.forward
        # The database may have changed since the last compilation.
        present = unused.pop() if unused else winners.renewed()
        with present.reading():
            with suppress(CaptureError):
                found = graph_problems(graph_module, example_inputs)
                if found and (way := known_faster_way(found, present, device)):
                    return on_torch(way, graph_module, example_inputs)
            return compile_step(graph_module, example_inputs, present, device, graph)

    compiled: Compiled = torch.compile(module, backend=backend, dynamic=False)
    return compiled


def compile_step(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    winners: Winners,
    device: torch.device,
    graph: bool,
    direct: bool = False,
) -> Compiled:
    """Return the callable that runs a graph of Dynamo with gradients.

    Autograd's graphs of the forward and of the backward pass are compiled by Inductor. Where it is not available, torch
    runs their operators one by one.

    Args:
        graph_module: The graph.
        example_inputs: Dynamo's example of each argument.
        winners: The kernels.
        device: The device of the arguments.
        graph: On a GPU, replay each pass as a CUDA graph where its arguments stay in place.
        direct: As for ReplayedStep.
    """
    use(winners)
    rewrite_norms(graph_module, winners.database, device)
    reason = why_not_compiled(device)
    rewrite = Rewrite(winners, is_compiled=reason is None)
    if reason is None:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        is_recorded = graph and device.type == "cuda"
        options = {"post_grad_custom_pre_pass": rewrite, "triton.cudagraphs": is_recorded}
        replay = StepReplay()
        inner: Any = replay.compile if is_recorded else compile_fx_inner
        compiled: Any = compile_fx(graph_module, list(example_inputs), inner, options)
        return replay.step(compiled, example_inputs, direct=direct)
    warnings.warn(f"a training step runs on torch's operators beside the tuned kernels: {reason}", stacklevel=4)
    return _without_inductor(graph_module, example_inputs, rewrite)


def known_faster_way(found: StepProblems, winners: Winners, device: torch.device) -> str | None:
    """Return the way in which torch runs a step faster than our kernels do; None if it does not, or is not known to.

    All that the compilation of the step asks for is read.

    Args:
        found: The problems of the step.
        winners: The kernels.
        device: The device of the step.

    Raises:
        DatabaseError: The database cannot be read.
    """
    winners.read(found.to_tune().values(), device)
    ways = winners.faster_ways(device, is_compiled=why_not_compiled(device) is None)
    return ways.get(step_digest(found.of_layers))


def on_torch(way: str, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """Return the callable that runs a graph of Dynamo as torch does.

    Args:
        way: EAGER or INDUCTOR.
        graph_module: The graph.
        example_inputs: Dynamo's example of each argument.
    """
    return graph_module.forward if way == EAGER else by_inductor(graph_module, example_inputs)


def why_not_compiled(device: torch.device) -> str | None:
    """Return why Inductor compiles no step on a device; None if it does."""
    return inductor.why_unavailable(device) if inductor.is_wanted() else f"{inductor.SWITCH} is 0"


def _without_inductor(graph_module: fx.GraphModule, example_inputs: Sequence[Any], rewrite: Rewrite) -> Compiled:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    def compiler(part: fx.GraphModule, _: Sequence[Any]) -> Compiled:
        rewrite(part.graph)
        part.recompile()
        boxed: Compiled = make_boxed_func(part.forward)
        return boxed

    compiled: Compiled = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)(graph_module, list(example_inputs))
    return compiled
