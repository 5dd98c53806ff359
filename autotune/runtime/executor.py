"""Execution of a plan on one stream: its memory, and the launches that run in it."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from autotune.core import LayerError, first_line
from autotune.ir import TENSOR_DTYPES, CallerTensor
from autotune.runtime.binding import BoundStep
from autotune.runtime.captured_layers import CapturedLayers
from autotune.runtime.engine import FastPath, Graph, Program
from autotune.runtime.memory_planner import aligned
from autotune.runtime.network_plan import Executable, NetworkPlan, execute, make_graph, make_runs

ACCESS = 16
"""Bytes of a kernel's widest access. Kernels assume tensors aligned to it; a view into another tensor may not be."""

count = itertools.count()
"""Numbers the runs of a process, so that the context used least recently can be found."""


class StreamMemory:
    """Memory for the activations of plans that run on one stream, one after the other.

    Args:
        device: The device.
        size: Its size in bytes.

    Attributes:
        lock: Held while a run is launched.
        block: The memory, on which a run leaves any values.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        self.lock = threading.Lock()
        with torch.inference_mode(False):
            self.block = torch.empty(size, dtype=torch.uint8, device=device)


class ExecutionContext:
    """A plan in the memory of one stream. Calls from different threads run one after the other.

    Contexts share the plan's weights. Those of one module on one stream share the memory of activations, too, and
    others share nothing that a run writes, so streams do not wait for each other. On a GPU the whole network is one
    CUDA graph, which is updated with the addresses of the caller's tensors. Layers on torch's operators are a part of
    it that torch captures (captured_layers.py).

    The engine's fast path (engine/fast_path.cpp) reads `direct` and `template`, holds `lock`, sets `used` and calls
    `wait_until_idle`. It takes networks with one input and one result.

    Args:
        plan: The plan.
        graph: Whether to replay a CUDA graph, as `plan.graph` says; False for a run that is itself being captured.
        memory: Memory of at least `plan.activation_bytes`, shared with contexts on the same stream; None for its own.

    Attributes:
        memory: The memory of its activations.
        templates: For each result, a tensor with its shape, dtype and strides; its values mean nothing.
        used: Number of its last run.
        closed: Whether its memory is no longer in use by the module (`close`).
    """

    def __init__(self, plan: NetworkPlan, graph: bool, memory: StreamMemory | None = None) -> None:
        self.plan, self._copied = plan, plan.copied
        self.memory = memory or StreamMemory(plan.device, plan.activation_bytes)
        self.used = next(count)
        self.closed = False
        with torch.inference_mode(False), torch.no_grad():
            self._tensors = _divided(plan, self.memory.block)
            self.templates = [
                _like(result, self.memory.block, i in plan.in_torch_order)
                for i, result in enumerate(plan.network.results)
            ]
        # The first slots are the caller's tensors, which each run provides. Kernels take the fixed addresses of the
        # others; torch's operators take the tensors.
        slots = self._slots = [None] * len(plan.network.callers) + [tensor.data_ptr() for tensor in self._tensors]
        self._runs = make_runs(plan.bound, slots)
        self._on_torch: CapturedLayers | None = None  # owns memory that the runs use
        if graph:
            self._runs = [make_graph(plan.bound, plan.device, slots)] if plan.native else self._captured(slots)
        self._native = _single_native(self._runs)

    @property
    def direct(self) -> Graph | Program | None:
        """The graph or program that computes the only result from the only input as it is; None without one."""
        return None if self._copied or len(self.plan.network.callers) != 2 else self._native

    @property
    def template(self) -> torch.Tensor:
        """The template of the only result."""
        (template,) = self.templates
        return template

    @property
    def lock(self) -> threading.Lock:
        """Held while a run is launched in its memory."""
        return self.memory.lock

    def run(self, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor], stream: int) -> None:
        """Run the network.

        Args:
            inputs: The inputs, in the plan's shapes, dtypes and memory formats.
            results: Receive the results; shapes, dtypes and strides of `templates`.
            stream: Handle of the current CUDA stream; 0 on a CPU.

        Raises:
            LayerError: A layer on an operator of torch or a plan of cuDNN fails.
        """
        inputs = self._readable(inputs)
        with self.lock:
            self.used = next(count)
            if self._native:
                self._native.run(stream, [tensor.data_ptr() for tensor in (*inputs, *results)])
            else:
                self._run_mixed(inputs, results, stream)
        if self.closed:
            self.wait_until_idle()

    def poison(self) -> None:
        """Fill the activations with NaN, so that a check finds what no layer writes; nothing may run meanwhile."""
        self.memory.block.fill_(0xFF)

    def wait_until_idle(self) -> None:
        """Wait for the device after a run on a context that another thread closed before the launch.

        `close` did not wait for that run, and the memory may be freed when the caller returns.
        """
        _synchronize(self.plan.device)

    def singly(
        self, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor], stream: int
    ) -> list[Callable[[], None]]:
        """Return one function for each layer that launches it alone, in order and outside any CUDA graph.

        The arguments are those of `run`.
        """
        tensors = self._in_slots(self._readable(inputs), results)
        runs = [make_runs([item], self._slots) for item in self.plan.bound]
        return [partial(execute, run, stream, tensors) for run in runs]

    def _readable(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the inputs as kernels read them: in a memory format that they take, and aligned."""
        given = [x.contiguous() if i in self._copied else x for i, x in enumerate(inputs)]
        return [x.clone() if x.data_ptr() % ACCESS else x for x in given]

    def _in_slots(self, inputs: Iterable[torch.Tensor], results: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        return [*inputs, *self._as_written(results), *self._tensors]

    def _as_written(self, results: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return views of results with the axes in the order in which the last layers write them."""
        return [y if i in self.plan.in_torch_order else _channels_last_view(y) for i, y in enumerate(results)]

    def _run_mixed(self, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor], stream: int) -> None:
        with torch.no_grad(), torch.autocast(self.plan.device.type, enabled=False):
            execute(self._runs, stream, self._in_slots(inputs, results))

    def _captured(self, slots: Sequence[int | None]) -> list[Executable]:
        """Return the runs with the layers on torch's operators captured; without a capture if torch refuses it."""
        likes = [*self.plan.empty_inputs(), *self._as_written(map(torch.empty_like, self.templates))]
        plan, tensors = self.plan, [*likes, *self._tensors]
        make = partial(CapturedLayers, plan.bound, plan.network.callers, plan.device, slots, tensors)
        try:
            try:
                self._on_torch = make()
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()  # memory that is free in other pools of torch
                self._on_torch = make()
            return self._on_torch.runs
        except torch.OutOfMemoryError:
            raise  # it may work when there is memory again
        except (RuntimeError, LayerError) as error:  # such as a layer that reads a value on the host
            warnings.warn(
                f"{self.plan.network.key} runs without a CUDA graph: "
                f"one of torch's operators cannot be captured: {first_line(error)}",
                stacklevel=2,
            )
            return self._runs


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
    """Return a result (n, k, p, q) that is channels last in memory as (n, p, q, k)."""
    return y.permute(0, 2, 3, 1) if y.dim() == 4 else y


def _single_native(runs: Sequence[Executable]) -> Graph | Program | None:
    """Return the graph or program that is the whole network; None where some layer has no native kernel."""
    return runs[0] if len(runs) == 1 and not isinstance(runs[0], BoundStep) else None


def _divided(plan: NetworkPlan, block: torch.Tensor) -> list[torch.Tensor]:
    """Return the activations of a plan as parts of a block of memory, and then its workspaces, which are its own.

    The engine's contract: a workspace is zero before the first launch, and only its kernel writes it.
    """
    tensors, end = [], 0
    for name, operand in plan.buffers.items():
        offset = plan.arena.offsets[name]
        part = block[offset : offset + operand.bytes]
        tensors.append(part.view(TENSOR_DTYPES[operand.dtype]).view(operand.shape))
    workspaces = torch.zeros(plan.workspace_bytes, dtype=torch.uint8, device=plan.device)
    for size in plan.workspaces:
        tensors.append(workspaces[end : end + size])
        end += aligned(size)
    return tensors


def _like(result: CallerTensor, memory: torch.Tensor, contiguous: bool) -> torch.Tensor:
    """Return a tensor like a result, with any values: channels last in memory if it has four dimensions, or contiguous.

    Args:
        result: The result.
        memory: At least as much memory as it has.
        contiguous: Whether it is contiguous although it has four dimensions.
    """
    like, shape = memory[: result.bytes].view(TENSOR_DTYPES[result.dtype]), result.shape
    if contiguous or len(shape) != 4:
        return like.view(shape)
    n, k, p, q = shape
    return like.view(n, p, q, k).permute(0, 3, 1, 2)
