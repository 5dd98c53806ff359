"""A plan's memory on one stream, and what runs in it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch

from autotune.ir import DTYPES, INPUT, OUTPUT
from autotune.runtime.binding import BoundStep
from autotune.runtime.engine import Calls, Graph, Program
from autotune.runtime.memory_planner import aligned
from autotune.runtime.network_plan import Executable, NetworkPlan, capture, execute, make_graph, make_runs

ACCESS = 16
"""Bytes of the widest access, to which kernels take tensors to be aligned: a view into another may be less."""

count = itertools.count()


class ExecutionContext:
    """Runs a plan on one stream; calls, from whichever thread, follow each other.

    Frames share the plan's weights and nothing that is written, so streams need not wait for each other. All
    activations and workspaces are one allocation. On a GPU the whole network is one CUDA graph, which takes the
    caller's tensors as they come; where some layers run on torch's operators, those between the first and the last
    are captured by torch, with its memory pool.

    graph: as the plan has it, or False for a run that is itself being captured.
    """

    def __init__(self, plan: NetworkPlan, graph: bool) -> None:
        self.plan, self._copies_input = plan, plan.copies_input
        self.lock = threading.Lock()
        self.used = next(count)
        self.closed = False
        with torch.inference_mode(False), torch.no_grad():
            self._memory, self._tensors = _allocate(plan)
            self.template = _like_output(plan, self._memory)
        # Places of the caller's tensors are told at a run; torch's operators take tensors, kernels addresses.
        slots = self._slots = [None, None, *(tensor.data_ptr() for tensor in self._tensors)]
        self._runs = make_runs(plan.bound, slots)
        if graph:
            self._runs = [make_graph(plan.bound, slots)] if plan.native else self._captured(slots)
        self._native = _whole(self._runs)

    @property
    def direct(self) -> Graph | Program | None:
        """What runs the whole network in one call on tensors as callers have them, if anything does."""
        return None if self._copies_input else self._native

    @property
    def bytes(self) -> int:
        """Size of its memory."""
        return self._memory.numel()

    def run(self, x: torch.Tensor, y: torch.Tensor, stream: int) -> None:
        """x, as the plan takes it, -> y, strided as `template`. stream: the current one's handle; 0 on a CPU."""
        if self._copies_input:
            x = x.contiguous()
        address = x.data_ptr()
        if address % ACCESS:
            x = x.clone()
            address = x.data_ptr()
        with self.lock:
            self.used = next(count)
            if self._native:
                self._native.run(stream, (address, y.data_ptr()))
            else:
                self._run_mixed(x, y, stream)
        if self.closed:
            self.settle()

    def settle(self) -> None:
        """After a run on a frame that another thread has forgotten meanwhile, without waiting for that run."""
        _synchronize(self.plan.device)

    def singly(self, x: torch.Tensor, y: torch.Tensor, stream: int) -> list[Callable[[], None]]:
        """The plan's layers as calls of their own, in order and outside any graph, for those who look at each."""
        tensors = (x.contiguous() if self.plan.copies_input else x, _inner(y), *self._tensors)
        runs = [make_runs([item], self._slots) for item in self.plan.bound]
        return [partial(execute, run, stream, tensors) for run in runs]

    def _run_mixed(self, x: torch.Tensor, y: torch.Tensor, stream: int) -> None:
        with torch.no_grad(), torch.autocast(self.plan.device.type, enabled=False):
            execute(self._runs, stream, (x, _inner(y), *self._tensors))

    def _captured(self, slots: Sequence[int | None]) -> list[Executable]:
        """Head, captured middle and tail: the head and the tail touch the caller's tensors."""
        bound = self.plan.bound
        first = max(i for i, item in enumerate(bound) if INPUT in item.layer.buffers.values()) + 1
        last = min(i for i, item in enumerate(bound) if OUTPUT in item.layer.buffers.values())
        middle = make_runs(bound[first:last], slots)
        if not middle:
            return self._runs
        nobody = self._memory[:0]  # none of these layers touches the caller's tensors
        graph = capture(middle, self.plan.device, (nobody, nobody, *self._tensors))
        replay = BoundStep("captured", function=lambda _: graph.replay())
        return [*make_runs(bound[:first], slots), replay, *make_runs(bound[last:], slots)]


def _inner(y: torch.Tensor) -> torch.Tensor:
    """A result as the last layer writes it: channels last."""
    return y.permute(0, 2, 3, 1) if y.dim() == 4 else y


def close(frames: Sequence[ExecutionContext], calls: Calls) -> None:
    """Let the memory of frames go once nothing runs in it."""
    for frame in frames:
        frame.closed = True  # first: who adds it to the calls after this looks whether it is
        calls.drop(frame)
    for device in {frame.plan.device for frame in frames}:
        _synchronize(device)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize(device)


def _whole(runs: Sequence[Executable]) -> Graph | Program | None:
    """What runs the whole network in one call, where all kernels are ours."""
    only = runs[0]
    return None if len(runs) > 1 or isinstance(only, BoundStep) else only


def _allocate(plan: NetworkPlan) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(one block, the activations and then the workspaces in it)."""
    total = plan.arena.bytes + sum(map(aligned, plan.workspaces))
    memory = torch.empty(max(total, plan.output.bytes), dtype=torch.uint8, device=plan.device)
    tensors = []
    for name, operand in plan.buffers.items():
        offset = plan.arena.offsets[name]
        tensors.append(memory[offset : offset + operand.bytes].view(DTYPES[operand.dtype]).view(operand.shape))
    end = plan.arena.bytes
    memory[end:].zero_()  # workspaces start so, and kernels leave them so
    for size in plan.workspaces:
        tensors.append(memory[end : end + size])
        end += aligned(size)
    return memory, tensors


def _like_output(plan: NetworkPlan, memory: torch.Tensor) -> torch.Tensor:
    """What results look like: torch's order of dimensions, channels last in memory. Its values mean nothing."""
    like, shape = memory[: plan.output.bytes].view(DTYPES[plan.output.dtype]), plan.network.output_shape
    if len(shape) != 4:
        return like.view(shape)
    n, k, p, q = shape
    return like.view(n, p, q, k).permute(0, 3, 1, 2)
