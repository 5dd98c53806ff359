"""Layers on torch's operators as a CUDA graph, by torch's own capture.

torch keeps a cuBLAS workspace for each stream that ran cuBLAS, and may free all of them at any time: `torch.compile`
does when it records a CUDA graph. A graph that used such a workspace would then write to memory of others. So a graph
here is captured on a stream that nothing else uses, into a memory pool of its own: its workspace is allocated in that
pool during the capture, and memory of a pool that is in use stays there also when torch frees it. A workspace stays
known for its stream when the graph is gone, so stream and pool are used again by a later graph, together.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from autotune.runtime.engine import create_stream
from autotune.runtime.network_plan import Executable, execute

WARM_UPS = 3
"""Runs before a capture: lazy loading and cuDNN's benchmark must not happen while torch captures."""


_HAS_HANDLES = hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph")


@dataclass(frozen=True)
class _Place:
    """A stream, and a memory pool that lives as long as the process.

    Attributes:
        stream: The stream, on which nothing but captures happens.
        keeper: A graph that is never run. It keeps the pool in use.
    """

    stream: torch.cuda.Stream
    keeper: torch.cuda.CUDAGraph


_free: defaultdict[torch.device, list[_Place]] = defaultdict(list)  # places of graphs that are gone
_lock = threading.Lock()


class CapturePlace:
    """A stream and a memory pool for graphs that never run at the same time; free again when they are gone.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            place = _take(device)
            self.warm_up = torch.cuda.Stream(device)
        self.stream, self.pool = place.stream, place.keeper.pool()
        weakref.finalize(self, _give_back, device, place).atexit = False


class TorchGraph:
    """A CUDA graph of executables, some of which are torch's operators.

    Args:
        runs: The executables.
        place: Where they are captured.
        slots: The tensors in the slots, in their order; they must outlive the graph.

    Raises:
        RuntimeError: One of torch's operators cannot be captured.
    """

    def __init__(self, runs: Sequence[Executable], place: CapturePlace, slots: Sequence[torch.Tensor]) -> None:
        self._graph = torch.cuda.CUDAGraph(keep_graph=True) if _HAS_HANDLES else torch.cuda.CUDAGraph()
        self._place, device = place, place.device
        cudnn = torch.backends.cudnn
        settings = cudnn.flags(True, benchmark=True, deterministic=cudnn.deterministic, allow_tf32=True)
        with torch.cuda.device(device), settings, torch.no_grad(), torch.autocast(device.type, enabled=False):
            torch.cuda.synchronize()  # also for graphs that had this place before
            generator = torch.cuda.default_generators[device.index or 0]
            drawn = generator.get_offset()
            with torch.cuda.stream(place.warm_up):
                for _ in range(WARM_UPS):
                    execute(runs, place.warm_up.cuda_stream, slots)
            place.warm_up.synchronize()
            self._draws = generator.get_offset() != drawn
            with torch.cuda.stream(place.stream):
                # torch.cuda.graph would return all free memory to the driver, which takes milliseconds.
                # thread_local: other threads may synchronize with their streams while this one captures.
                self._graph.capture_begin(place.pool, capture_error_mode="thread_local")
                try:
                    execute(runs, place.stream.cuda_stream, slots)
                finally:
                    self._graph.capture_end()
            torch.cuda.synchronize()

    @property
    def handle(self) -> int | None:
        """The cudaGraph_t, which lives as long as this object; None if only torch can launch it.

        That is so if an operator draws random numbers, because torch gives each replay new ones, and in versions of
        torch that do not keep the cudaGraph_t.
        """
        return self._graph.raw_cuda_graph() if _HAS_HANDLES and not self._draws else None

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        self._graph.replay()


def _take(device: torch.device) -> _Place:
    """Return a place that no graph uses; the current device must be `device`."""
    with _lock:
        if _free[device]:
            return _free[device].pop()
    stream = torch.cuda.ExternalStream(create_stream(device.index or 0), device)
    keeper = torch.cuda.CUDAGraph()
    with torch.cuda.graph(keeper, stream=stream, capture_error_mode="thread_local"):
        torch.zeros(1, device=device)
    return _Place(stream, keeper)


def _give_back(device: torch.device, place: _Place) -> None:
    _free[device].append(place)  # no lock: a finalizer may run in the thread that already holds it
