"""Everything that a FusedResNet has bound for the current state of its module: contexts, the fast path, and a watch.

A call's signature is the text of its arguments, the stream, and of each input shape, dtype, device and memory format.
It goes through these states:

    unknown --- bind ---> plan --- allocate ---> context --- first run ---> fast path
       ^                                            |                           |
       +---- evicted: more than `plans` contexts ---+---------------------------+
       +---- state changed, .to(), load_state_dict, rebind(): a new, empty CallCache

- plan: `NetworkPlan`, the kernels and packed weights. Streams share it. Plans share the constants that they have in
  common.
- context: `ExecutionContext`, a plan in the memory of one stream. The contexts of a stream share the memory of
  activations. If a plan needs more, they are closed, and made again in larger memory when they are called.
- fast path: the engine recognizes the signature and launches without the interpreter. A context gets there only if the
  whole network is native kernels that compute one result from one tensor, and read it as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from autotune.runtime import (
    ExecutionContext,
    NetworkPlan,
    SharedConstants,
    StreamMemory,
    close,
    count,
    engine,
)
from fused_resnet.guards import Guards

_LOG = logging.getLogger("fused_resnet")

Tensors = tuple[tuple[torch.Size, torch.dtype, torch.device, bool | None], ...]
"""For each input its shape, dtype, device and `is_contiguous`."""

Key = tuple[str, int, Tensors]
"""A call's signature: the text of its arguments (arguments.py), the stream's handle, and its inputs."""

EXCHANGE: object = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
"""DLPack's C functions for tensors, which the fast path needs; torch has them from version 2.10 on."""


class CallCache:
    """Contexts for one state of a module.

    Not synchronized: the owner holds a lock around `add`. `calls.run` and lookups may happen in any thread.

    Args:
        module: The module that the contexts run.

    Attributes:
        contexts: Context of each signature.
        plans: Plan of each signature without the stream; the one that was bound or looked for last is the last one.
        constants: The constants of all plans.
        calls: The engine's fast path.
        state: Tells whether a parameter, buffer or submodule has changed since the cache was made, or a value that
            forward reads since it was captured.
        bare: Whether the fast path's results are the module's results as they are.
    """

    def __init__(self, module: nn.Module) -> None:
        self.contexts: dict[Key, ExecutionContext] = {}
        self.constants = SharedConstants()
        self.plans: dict[tuple[str, Tensors], NetworkPlan] = {}
        self._memory: dict[tuple[torch.device, int], StreamMemory] = {}  # of each stream
        self.state = engine.StateWatch(_tensor_dictionaries(module))
        self.calls = engine.FastPath(EXCHANGE, torch.empty_like, count, self.state)
        self.bare = True
        self._guards: list[Guards] = []
        self._watches_values = False

    def guard(self, guards: Guards, tensors: Iterable[torch.Tensor], device: torch.device) -> None:
        """Watch what the layers of a plan depend on, before the plan reads it.

        Args:
            guards: The values that forward reads.
            tensors: The parameters and buffers. Samples of their values are compared, too: a write through `.data`, by
                NumPy or by another process has no version.
            device: The device of the plan. Values on other devices are not compared.
        """
        if not any(known is guards for known in self._guards):
            self._guards.append(guards)
            guards.add_to(self.state)
        if not self._watches_values:
            self._watches_values = True
            ordinal = (device.index or 0) if device.type == "cuda" else -1
            memory = [_memory(one) for one in tensors if one.device == device and _has_memory(one)]
            try:
                self.state.watch_values(memory, ordinal)
            except engine.EngineError as error:  # a driver that cannot compile the kernel that compares them
                _LOG.warning("%s: a write to a weight that torch does not count is not seen", error)

    def find(self, inputs: Sequence[torch.Tensor], arguments: str, stream: int) -> ExecutionContext | None:
        """Return the context for a call on a stream, if there is one."""
        return self.contexts.get(_key(inputs, arguments, stream))

    def plan(self, inputs: Sequence[torch.Tensor], arguments: str) -> NetworkPlan | None:
        """Return the plan that is bound for a call on any stream."""
        text, _, tensors = _key(inputs, arguments, 0)
        if found := self.plans.pop((text, tensors), None):
            self.plans[text, tensors] = found
        return found

    def keep(self, inputs: Sequence[torch.Tensor], arguments: str, plan: NetworkPlan, limit: int) -> None:
        """Keep a plan for calls on any stream; of more than `limit` plans the least recent are dropped."""
        text, _, tensors = _key(inputs, arguments, 0)
        self.plans[text, tensors] = plan
        while len(self.plans) > max(limit, 1):
            oldest = next(iter(self.plans))
            del self.plans[oldest]
            self._close(*[one for one in self.contexts if (one[0], one[2]) == oldest])

    def add(
        self, inputs: Sequence[torch.Tensor], arguments: str, stream: int, plan: NetworkPlan, limit: int
    ) -> ExecutionContext:
        """Return a new context of a plan; of more than `limit` contexts or plans the least recent are dropped."""
        while len(self.contexts) >= max(limit, 1):
            self._close(min(self.contexts, key=lambda key: self.contexts[key].used))
        self.keep(inputs, arguments, plan, limit)
        context = ExecutionContext(plan, plan.graph, self._memory_for(plan, stream))
        self.contexts[_key(inputs, arguments, stream)] = context
        return context

    def _memory_for(self, plan: NetworkPlan, stream: int) -> StreamMemory:
        """Return the memory of a stream; a plan that needs more closes the contexts there, whose plans stay."""
        place = plan.device, stream
        memory = self._memory.get(place)
        if memory is None or memory.block.numel() < plan.activation_bytes:
            self._memory.pop(place, None)  # before more is allocated
            close([self.contexts.pop(key) for key, one in [*self.contexts.items()] if one.memory is memory], self.calls)
            del memory
            self._memory[place] = StreamMemory(plan.device, plan.activation_bytes)
        return self._memory[place]

    def _close(self, *keys: Key) -> None:
        """Close contexts, and forget their plans unless another context has them."""
        close([self.contexts.pop(key) for key in keys], self.calls)
        for text, _, tensors in keys:
            if not any((one[0], one[2]) == (text, tensors) for one in self.contexts):
                self.plans.pop((text, tensors), None)

    def use_fast_path(self, x: torch.Tensor, context: ExecutionContext) -> None:
        """Let the engine launch the context for inputs like x from now on."""
        self.calls.add(x, context)
        if context.closed:  # by another thread, before the line above
            self.calls.drop(context)

    def close(self) -> None:
        """Close all contexts and forget them: a thread that still holds this cache must not keep their memory."""
        contexts, self.contexts = list(self.contexts.values()), {}
        close(contexts, self.calls)
        self.plans, self._memory = {}, {}


def is_contiguous(x: torch.Tensor) -> bool | None:
    """Return True for contiguous memory, False for channels last, None for any other strides."""
    return True if x.is_contiguous() else False if x.is_contiguous(memory_format=torch.channels_last) else None


def _key(inputs: Sequence[torch.Tensor], arguments: str, stream: int) -> Key:
    return arguments, stream, tuple([(x.shape, x.dtype, x.device, is_contiguous(x)) for x in inputs])


def _has_memory(x: torch.Tensor) -> bool:
    """Return whether a tensor's elements lie in memory of its own or of a view; a subclass may compute them."""
    return (
        type(x) in (torch.Tensor, nn.Parameter) and x.layout is torch.strided and bool(x.numel()) and not x.is_quantized
    )


def _memory(x: torch.Tensor) -> tuple[int, int]:
    """Return the address of a tensor and the bytes from its first to its last element."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), (last + 1) * x.element_size()


def _tensor_dictionaries(module: nn.Module) -> list[dict[str, Any]]:
    """Return the dictionaries that hold every parameter, buffer and submodule."""
    return [parts for part in module.modules() for parts in (part._parameters, part._buffers, part._modules)]
