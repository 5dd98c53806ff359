"""Execution of a plan on one stream: its memory, and the launches that run in it."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch

from autotune.ir import DTYPES, INPUT, OUTPUT
from autotune.runtime.binding import BoundStep
from autotune.runtime.engine import FastPath, Graph, Program
from autotune.runtime.memory_planner import aligned
from autotune.runtime.network_plan import Executable, NetworkPlan, execute, make_graph, make_runs
from autotune.runtime.torch_capture import TorchGraph

ACCESS = 16
"""Bytes of a kernel's widest access. Kernels assume tensors aligned to it; a view into another tensor may not be."""

count = itertools.count()
"""Numbers the runs of a process, so that the context used least recently can be found."""


class ExecutionContext:
    """Memory of a plan on one stream. Calls from different threads run one after the other.

    Contexts share the plan's weights and nothing that a run writes, so streams do not wait for each other. All
    activations and workspaces are one allocation. On a GPU the whole network is one CUDA graph, whose parameters are
    updated with the addresses of the caller's tensors; where some layers run on torch's operators, torch captures
    those between the first and the last layer, with its memory pool.

    The engine's fast path (engine/fast_path.cpp) reads `direct` and `template`, holds `lock`, sets `used` and calls
    `wait_until_idle`.

    Args:
        plan: The plan.
        graph: Whether to replay a CUDA graph, as `plan.graph` says; False for a run that is itself being captured.

    Attributes:
        template: A tensor with shape, dtype and strides of results; its values mean nothing.
        lock: Held while a run is launched.
        used: Number of its last run.
        closed: Whether its memory is no longer in use by the module (`close`).
    """

    def __init__(self, plan: NetworkPlan, graph: bool) -> None:
        self.plan, self._copies_input = plan, plan.copies_input
        self.lock = threading.Lock()
        self.used = next(count)
        self.closed = False
        with torch.inference_mode(False), torch.no_grad():
            self._memory, self._tensors = _allocate(plan)
            self.template = _like_output(plan, self._memory)
        # Slots 0 and 1 are the caller's tensors, which each run provides. Kernels take the fixed addresses of the
        # others; torch's operators take the tensors.
        slots = self._slots = [None, None, *(tensor.data_ptr() for tensor in self._tensors)]
        self._runs = make_runs(plan.bound, slots)
        if graph:
            self._runs = [make_graph(plan.bound, slots)] if plan.native else self._captured(slots)
        self._native = _single_native(self._runs)

    @property
    def direct(self) -> Graph | Program | None:
        """The graph or program that runs the whole network on the caller's tensors as they are; None without one."""
        return None if self._copies_input else self._native

    @property
    def bytes(self) -> int:
        """Size of its memory in bytes."""
        return self._memory.numel()

    def run(self, x: torch.Tensor, y: torch.Tensor, stream: int) -> None:
        """Run the network.

        Args:
            x: The input, in the plan's shape, dtype and memory format.
            y: Receives the result; shape, dtype and strides of `template`.
            stream: Handle of the current CUDA stream; 0 on a CPU.
        """
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
            self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait for the device after a run on a context that another thread closed before the launch.

        `close` did not wait for that run, and the memory may be freed when the caller returns.
        """
        _synchronize(self.plan.device)

    def singly(self, x: torch.Tensor, y: torch.Tensor, stream: int) -> list[Callable[[], None]]:
        """Return one function for each layer that launches it alone, in order and outside any CUDA graph.

        Args:
            x: The input, in the plan's shape, dtype and memory format.
            y: Receives the result; shape, dtype and strides of `template`.
            stream: Handle of the current CUDA stream; 0 on a CPU.
        """
        tensors = (x.contiguous() if self.plan.copies_input else x, _channels_last_view(y), *self._tensors)
        runs = [make_runs([item], self._slots) for item in self.plan.bound]
        return [partial(execute, run, stream, tensors) for run in runs]

    def _run_mixed(self, x: torch.Tensor, y: torch.Tensor, stream: int) -> None:
        with torch.no_grad(), torch.autocast(self.plan.device.type, enabled=False):
            execute(self._runs, stream, (x, _channels_last_view(y), *self._tensors))

    def _captured(self, slots: Sequence[int | None]) -> list[Executable]:
        """Return head, captured middle and tail; head and tail are the layers that touch the caller's tensors.

        Where nothing lies between, as in a network of one layer, all layers are captured on copies of these tensors.
        """
        bound = self.plan.bound
        first = max(i for i, item in enumerate(bound) if INPUT in item.layer.buffers.values()) + 1
        last = min(i for i, item in enumerate(bound) if OUTPUT in item.layer.buffers.values())
        middle = make_runs(bound[first:last], slots)
        x = y = self._memory[:0]  # for the slots of the caller's tensors, which none of these layers touches
        if not middle:
            x, y = self.plan.empty_input(), _channels_last_view(torch.empty_like(self.template))
        try:
            graph = TorchGraph(middle or self._runs, self.plan.device, (x, y, *self._tensors))
        except torch.OutOfMemoryError:
            raise  # it may work when there is memory again
        except RuntimeError as error:  # such as a layer that reads a value on the host
            warnings.warn(
                f"{self.plan.network.key} runs without a CUDA graph: one of torch's operators cannot be captured: "
                f"{str(error).splitlines()[0]}",
                stacklevel=2,
            )
            return self._runs
        if not middle:

            def replay_on_copies(slots: Sequence[torch.Tensor]) -> None:
                x.copy_(slots[0])
                graph.replay()
                slots[1].copy_(y)

            return [BoundStep("captured", function=replay_on_copies)]
        replay = BoundStep("captured", function=lambda _: graph.replay())
        return [*make_runs(bound[:first], slots), replay, *make_runs(bound[last:], slots)]


def close(contexts: Sequence[ExecutionContext], calls: FastPath) -> None:
    """Remove contexts from the engine's fast path, and wait until nothing runs in their memory."""
    for context in contexts:
        context.closed = True  # before drop: a thread that adds the context after the drop checks this flag
        calls.drop(context)
    for device in {context.plan.device for context in contexts}:
        _synchronize(device)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize(device)


def _channels_last_view(y: torch.Tensor) -> torch.Tensor:
    """Return a result (n, k, p, q) as the last layer writes it: (n, p, q, k)."""
    return y.permute(0, 2, 3, 1) if y.dim() == 4 else y


def _single_native(runs: Sequence[Executable]) -> Graph | Program | None:
    """Return the graph or program that is the whole network; None where some layer has no native kernel."""
    only = runs[0]
    return None if len(runs) > 1 or isinstance(only, BoundStep) else only


def _allocate(plan: NetworkPlan) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return one block of memory, and the activations and then the workspaces in it."""
    total = plan.arena.bytes + sum(map(aligned, plan.workspaces))
    memory = torch.empty(max(total, plan.output.bytes), dtype=torch.uint8, device=plan.device)
    tensors = []
    for name, operand in plan.buffers.items():
        offset = plan.arena.offsets[name]
        tensors.append(memory[offset : offset + operand.bytes].view(DTYPES[operand.dtype]).view(operand.shape))
    end = plan.arena.bytes
    memory[end:].zero_()  # kernels expect a workspace of zeros, and leave it so
    for size in plan.workspaces:
        tensors.append(memory[end : end + size])
        end += aligned(size)
    return memory, tensors


def _like_output(plan: NetworkPlan, memory: torch.Tensor) -> torch.Tensor:
    """Return a tensor like the results: torch's order of dimensions, channels last in memory, with any values."""
    like, shape = memory[: plan.output.bytes].view(DTYPES[plan.output.dtype]), plan.network.output_shape
    if len(shape) != 4:
        return like.view(shape)
    n, k, p, q = shape
    return like.view(n, p, q, k).permute(0, 3, 1, 2)
