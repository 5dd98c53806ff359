"""Plans with layers on torch's operators as one CUDA graph: torch captures these layers, the engine launches the rest.

Layers on torch's operators that follow each other are captured together. The engine's graph runs these captures one
after the other, because they share a stream and a memory pool, and its own kernels beside them where nothing depends on
the other.

A graph that torch captured works on the addresses of its capture. A layer in it that reads or writes a tensor of the
caller therefore works on a copy of this tensor, and the engine's graph has a node for each copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from autotune.runtime.binding import BoundStep
from autotune.runtime.engine import Graph
from autotune.runtime.graph_edges import GraphEdges
from autotune.runtime.network_plan import BoundLayer, Executable, add_kernels, make_runs
from autotune.runtime.torch_capture import CapturePlace, TorchGraph


@dataclass(frozen=True)
class _Part:
    """Layers that follow each other in a plan: all with native kernels, or all captured by torch.

    Attributes:
        layers: The layers.
        graph: Torch's graph of them; None for native kernels.
    """

    layers: Sequence[BoundLayer]
    graph: TorchGraph | None

    @property
    def writes(self) -> set[str]:
        """The buffers that the layers write."""
        return {name for item in self.layers for name in item.layer.writes}

    @property
    def reads(self) -> set[str]:
        """The buffers that the layers read and that others write."""
        return {name for item in self.layers for name in item.layer.reads} - self.writes


class CapturedLayers:
    """The layers of a plan, those on torch's operators captured by torch.

    Args:
        bound: The layers in order.
        callers: Buffer names of the caller's tensors, which are the first slots.
        device: The GPU.
        slots: Address of each slot that is the same in every run, and None for the caller's tensors.
        tensors: The tensors in the slots. In the slots of the caller's tensors are tensors like them, which become the
            copies.
        capture: Returns torch's graph of some layers on these tensors; by default a new one. Graphs that it returns
            may share a CapturePlace.

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
        self._slots, self._tensors, self._device = slots, tensors, device
        self._callers = {name: slot for slot, name in enumerate(callers)}
        self._place = None if capture else CapturePlace(device)
        self._parts = [
            _Part(layers, None if is_native else (capture or self._capture)(layers))
            for is_native, layers in _runs_of(bound)
        ]
        self.runs = list(self._executables())

    def _capture(self, layers: Sequence[BoundLayer]) -> TorchGraph:
        assert self._place
        return TorchGraph(make_runs(layers, self._slots), self._place, self._tensors)

    def _executables(self) -> Iterator[Executable]:
        if all(part.graph is None or part.graph.handle is not None for part in self._parts):
            yield self._joined()
            return
        for part in self._parts:
            if part.graph:
                yield BoundStep("captured", function=partial(self._replay, part))
            else:
                yield from make_runs(part.layers, self._slots)

    def _joined(self) -> Graph:
        """Return the engine's graph of all layers, which contains the graphs of torch."""
        graph, edges = Graph(self._device.index or 0, self._slots), GraphEdges()
        made_by: dict[str, int] = {}  # the node after which a buffer holds its values
        copied: dict[str, int] = {}  # the same for the copies of the caller's tensors
        captured: int | None = None
        for part in self._parts:
            if part.graph is None:
                add_kernels(graph, part.layers, made_by, edges)
                continue
            for name in sorted(self._callers.keys() & part.reads - copied.keys()):
                to, made = self._copy(name), edges.add([made_by[name]] if name in made_by else [])
                copied[name] = graph.add_copy(to.data_ptr(), -1 - self._callers[name], to.nbytes, made)
            after = {copied.get(name, made_by.get(name)) for name in part.reads} | {captured}
            assert part.graph.handle is not None
            captured = graph.add_captured(part.graph.handle, edges.add(node for node in after if node is not None))
            made_by |= dict.fromkeys(part.writes, captured)
            for name in sorted(self._callers.keys() & part.writes):
                copied[name], one = captured, self._copy(name)
                made_by[name] = graph.add_copy(
                    -1 - self._callers[name], one.data_ptr(), one.nbytes, edges.add([captured])
                )
        return graph

    def _copy(self, name: str) -> torch.Tensor:
        return self._tensors[self._callers[name]]

    def _replay(self, part: _Part, slots: Sequence[torch.Tensor]) -> None:
        """Replay a graph of torch between copies, one launch after the other."""
        assert part.graph
        for name in self._callers.keys() & part.reads:
            self._copy(name).copy_(slots[self._callers[name]])
        part.graph.replay()
        for name in self._callers.keys() & part.writes:
            slots[self._callers[name]].copy_(self._copy(name))


def _runs_of(bound: Sequence[BoundLayer]) -> Iterator[tuple[bool, list[BoundLayer]]]:
    """Return the runs of layers of which all or none have native kernels, each with whether they have."""
    for is_native, layers in itertools.groupby(bound, lambda item: bool(item.step.kernel)):
        yield is_native, list(layers)
