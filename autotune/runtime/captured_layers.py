"""Plans with layers on torch's operators as one CUDA graph: torch captures these layers, the engine launches the rest.

A graph that torch captured works on the addresses of its capture. A layer in it that reads or writes a tensor of the
caller therefore works on a copy of this tensor, and the engine's graph has a node for each copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from autotune.runtime.binding import BoundStep
from autotune.runtime.engine import Graph
from autotune.runtime.network_plan import BoundLayer, Executable, add_kernels, make_runs
from autotune.runtime.torch_capture import TorchGraph


@dataclass(frozen=True)
class _Copy:
    """A copy of a tensor of the caller.

    Attributes:
        name: The buffer of the tensor.
        slot: Its slot.
        tensor: The copy.
    """

    name: str
    slot: int
    tensor: torch.Tensor


class CapturedLayers:
    """The layers of a plan from the first to the last one on torch's operators, captured by torch.

    Args:
        bound: The layers of the plan in order; at least one of them has no native kernel.
        callers: Buffer names of the caller's tensors, which are the first slots.
        device: The GPU.
        slots: Address of each slot that is the same in every run, and None for the caller's tensors.
        tensors: The tensors in the slots. In the slots of the caller's tensors are tensors like them, which become the
            copies.
        capture: Returns torch's graph of some layers on these tensors; by default a new one.

    Attributes:
        runs: The plan as executables: one CUDA graph if the engine can launch what torch captured.

    Raises:
        RuntimeError: One of torch's operators cannot be captured.
    """

    def __init__(
        self,
        bound: Sequence[BoundLayer],
        callers: Sequence[str],
        device: torch.device,
        slots: Sequence[int | None],
        tensors: Sequence[torch.Tensor],
        capture: Callable[[Sequence[BoundLayer]], TorchGraph] | None = None,
    ) -> None:
        on_torch = [i for i, item in enumerate(bound) if not item.step.kernel]
        first, end = on_torch[0], on_torch[-1] + 1
        self._before, captured, self._after = bound[:first], bound[first:end], bound[end:]
        self._writes = {name for item in captured for name in item.layer.writes}
        self._reads = {name for item in captured for name in item.layer.reads} - self._writes

        def copies(names: Collection[str]) -> list[_Copy]:
            return [_Copy(name, slot, tensors[slot]) for slot, name in enumerate(callers) if name in names]

        self._inputs, self._results = copies(self._reads), copies(self._writes)
        self._device, self._slots = device, slots
        self._graph = capture(captured) if capture else TorchGraph(make_runs(captured, slots), device, tensors)
        self.runs = self._executables()

    def _executables(self) -> list[Executable]:
        if self._graph.handle is not None:
            return [self._joined(self._graph.handle)]
        replay = BoundStep("captured", function=self._replay)
        return [*make_runs(self._before, self._slots), replay, *make_runs(self._after, self._slots)]

    def _joined(self, captured: int) -> Graph:
        """Return the engine's graph of all layers around the graph of torch with this handle."""
        graph = Graph(self._device.index or 0, self._slots)
        made_by: dict[str, int] = {}
        add_kernels(graph, self._before, made_by)
        for one in self._inputs:
            after = [made_by[one.name]] if one.name in made_by else []
            made_by[one.name] = graph.add_copy(one.tensor.data_ptr(), -1 - one.slot, one.tensor.nbytes, after)
        number = graph.add_captured(captured, sorted({made_by[name] for name in self._reads if name in made_by}))
        made_by |= dict.fromkeys(self._writes, number)
        for one in self._results:
            made_by[one.name] = graph.add_copy(-1 - one.slot, one.tensor.data_ptr(), one.tensor.nbytes, [number])
        add_kernels(graph, self._after, made_by)
        return graph

    def _replay(self, slots: Sequence[torch.Tensor]) -> None:
        """Replay torch's graph between copies, one launch after the other."""
        for one in self._inputs:
            one.tensor.copy_(slots[one.slot])
        self._graph.replay()
        for one in self._results:
            slots[one.slot].copy_(one.tensor)
