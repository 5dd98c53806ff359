"""The stream on which plans are bound, one for each GPU, and with it the memory that plans own.

torch's allocator keeps a freed block for the stream on which it was allocated. Plans are bound by any thread, on any
stream. If their weights were allocated on that stream, each change of the weights could move them to the pool of
another stream, and all pools would grow to the size of all weights. So weights and the temporary tensors of their
packing are allocated on a stream of their own, on which nothing else runs and which nobody captures.

Runs on other streams read this memory, and the allocator does not know of them. It must not be written before they
have ended:

- Binding begins with a synchronization of the device. Memory that was freed before is no longer read.
- A plan that is dropped while another plan is bound keeps its memory until the binding has ended.

Binding ends with a synchronization too, so that all streams may read the results.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from autotune.runtime.engine import create_stream

_streams: dict[int, torch.cuda.Stream] = {}
_binding: Counter[int] = Counter()  # GPU -> number of plans that are being bound
_dropped: defaultdict[int, list[object]] = defaultdict(list)  # GPU -> memory of plans that were dropped meanwhile
_lock = threading.Lock()


@contextmanager
def binding_stream(device: torch.device) -> Iterator[None]:
    """Make the stream of plans the current one while a plan is bound; on a CPU do nothing.

    Args:
        device: The device of the plan.
    """
    if device.type != "cuda":
        yield
        return
    index = device.index or 0
    with holding_dropped(index):
        torch.cuda.synchronize(device)
        with torch.cuda.stream(_stream(index)):
            yield
        torch.cuda.synchronize(device)


def free_with(plan: object, device: torch.device, memory: object) -> None:
    """Free memory when a plan is dropped, or at the end of the bindings that are in progress then.

    Args:
        plan: The plan. `memory` must not refer to it.
        device: The device of the plan.
        memory: The objects that hold the plan's tensors.
    """
    if device.type == "cuda":
        weakref.finalize(plan, _drop, device.index or 0, memory).atexit = False


@contextmanager
def holding_dropped(index: int) -> Iterator[None]:
    """Keep the memory of plans that are dropped meanwhile, until no binding is in progress on a GPU."""
    with _lock:
        _binding[index] += 1
    try:
        yield
    finally:
        with _lock:
            _binding[index] -= 1
            memory = [] if _binding[index] else _dropped.pop(index, [])
        del memory  # without the lock: what is freed may run code of others


def _drop(index: int, memory: object) -> None:
    if _binding[index]:
        _dropped[index].append(memory)  # no lock: a finalizer may run in the thread that already holds it


def _stream(index: int) -> torch.cuda.Stream:
    with _lock:
        if index not in _streams:
            # Not one of torch's: it hands out the same few streams again and again, also to callers who capture.
            _streams[index] = torch.cuda.ExternalStream(create_stream(index), torch.device("cuda", index))
        return _streams[index]
