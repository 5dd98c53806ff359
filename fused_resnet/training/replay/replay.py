"""Replays the two compiled passes of a training step as CUDA graphs, with little work on the host.

A small batch keeps a GPU busy for less time than the host needs for a step. Inductor's own CUDA graphs check and
rebuild each tensor of both passes in each step, and AOTAutograd each argument and result. Here the tensors of a pass
stay where they are (recording.py), and a plain step has an autograd function of its own (replayed_step.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor

from fused_resnet.training.replay.recording import Record, Recorder, Replayed, record_cuda_graph
from fused_resnet.training.replay.replayed_step import ReplayedStep, StepPasses, plain_form

LARGEST_SAVED = 1 << 28
"""Most bytes that a step may save for its backward pass. They stay allocated during the whole backward pass, where
Inductor's CUDA graphs reuse their memory. A step that saves more keeps a GPU busy for longer than the host needs: that
of SE-ResNet9-Fixup takes an H100 about a millisecond for 256 MiB."""


_PLAIN = (torch.Tensor, nn.Parameter, FakeTensor)
"""The classes of arguments that AOTAutograd passes on as they are."""


class StepReplay:
    """Compiles the passes of one training step so that they are replayed.

    Args:
        record: How a pass is recorded.
    """

    def __init__(self, record: Record = record_cuda_graph) -> None:
        self._recorder, self._is_small, self._passes = Recorder(record), False, StepPasses()

    def step(
        self, compiled: Callable[..., Any], example_inputs: Sequence[Any], *, direct: bool = False
    ) -> Callable[..., Any]:
        """Return a step that was compiled with `compile`, such that a plain step is replayed without AOTAutograd.

        Args:
            compiled: What compile_fx returned.
            example_inputs: Examples of its arguments.
            direct: As for ReplayedStep.
        """
        if self._passes.forward is None or any(type(one) not in _PLAIN for one in example_inputs):
            return compiled
        return ReplayedStep(compiled, len(example_inputs), self._passes, direct=direct)

    def compile(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
        """Compile a pass as compile_fx_inner does, whose place it takes as the `inner_compile` of compile_fx."""
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.output_code import CompiledFxGraph
        from torch._inductor.utils import BoxedBool

        is_backward = options.get("is_backward", False)
        if not is_backward:
            self._is_small = not options.get("is_inference") and _saved_bytes(graph_module) <= LARGEST_SAVED
        if not self._is_small:
            return compile_fx_inner(graph_module, example_inputs, **options)
        compiled = compile_fx_inner(graph_module, example_inputs, **{**options, "cudagraphs": BoxedBool(False)})
        fixed = frozenset(options.get("static_input_idxs", ()))
        if not isinstance(compiled, CompiledFxGraph) or not _can_be_recorded(compiled, example_inputs, fixed):
            return compiled
        count, saved = len(_results(graph_module)), _metadata().tensors_saved_for_backwards_slice
        held = range(count) if is_backward else range(count)[saved]
        replayed = Replayed(compiled, fixed, held, self._recorder, is_first=not is_backward)
        if is_backward:
            self._passes.backward = replayed
            self._passes.form = plain_form(_metadata(), example_inputs)
        else:
            self._passes.forward = replayed

        def run(arguments: list[Any]) -> Sequence[Any]:
            return replayed(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def _can_be_recorded(compiled: Any, example_inputs: Sequence[Any], fixed: frozenset[int]) -> bool:
    """Return whether a pass works on tensors of one device, and writes to none that is copied for it."""
    if compiled.disabled_cudagraphs_reason or not fixed.issuperset(compiled.mutated_input_idxs):
        return False
    tensors = [one for one in example_inputs if isinstance(one, torch.Tensor)]
    return len(tensors) == len(example_inputs) and len({one.device for one in tensors}) == 1


def _results(graph_module: fx.GraphModule) -> list[Any]:
    output = next(node for node in reversed(graph_module.graph.nodes) if node.op == "output")
    return list(output.args[0])


def _metadata() -> Any:
    """Return what AOTAutograd knows of the forward pass of the step that is being compiled (ViewAndMutationMeta)."""
    context: Any = torch._guards.TracingContext.get()
    return context.fw_metadata


def _saved_bytes(graph_module: fx.GraphModule) -> int:
    saved = {
        node
        for node in _results(graph_module)[_metadata().tensors_saved_for_backwards_slice]
        if node.op != "placeholder"
    }
    return sum(node.meta["val"].numel() * node.meta["val"].element_size() for node in saved)
