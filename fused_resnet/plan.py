"""A network bound for one shape, dtype and device: candidates, buffers, and on a GPU a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import os
import torch

from autotune.problem import DTYPES
from fused_resnet import engine
from fused_resnet.binding import Slot, Step, bind
from fused_resnet.engine import EngineError
from fused_resnet.graph import INPUT, OUTPUT, Layer
from fused_resnet.selection import Choice, choices, torch_choice
from tuning_db import Store

_SLOTS = {INPUT: Slot(0), OUTPUT: Slot(1)}


@dataclass(frozen=True)
class BoundLayer:
    """A layer, what runs it, and why."""

    layer: Layer
    choice: Choice
    step: Step


class Plan:
    """Runs a network's layers. Everything that can be done once is done here.

    On a GPU all layers but the first and last, which touch the caller's tensors, are one CUDA graph.
    """

    def __init__(
        self, layers: Sequence[Layer], state: Mapping[str, torch.Tensor], store: Store, device: torch.device, graph: bool
    ) -> None:
        self.device = device
        self._buffers = _buffers(layers, device)
        self.bound = [self._bind(layer, state, store) for layer in layers]
        self.output_shape = layers[-1].problem.output_shape
        self._dtype = DTYPES[layers[-1].problem.dtype]
        self._all = _runs(self.bound)
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda" and graph:
            with torch.inference_mode(), torch.cuda.device(device):
                self._capture()

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """x (N, C, H, W), contiguous, on the plan's device and in its dtype -> (N, K, P, Q), channels last in memory."""
        y = torch.empty(self.output_shape, dtype=self._dtype, device=self.device)
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else 0
        slots = (x, y)
        if self._graph is None or torch.cuda.is_current_stream_capturing():
            _execute(self._all, stream, slots)
        else:
            _execute(self._head, stream, slots)
            self._graph.replay()
            _execute(self._tail, stream, slots)
        return y.permute(0, 3, 1, 2)

    # -- binding ---------------------------------------------------------------------------------------------

    def _bind(self, layer: Layer, state: Mapping[str, torch.Tensor], store: Store) -> BoundLayer:
        tensors: dict[str, torch.Tensor | Slot] = {
            operand: _SLOTS[name] if name in _SLOTS else self._buffers[name] for operand, name in layer.buffers.items()
        }
        for operand in layer.problem.operands():
            if operand.role in ("weight", "vector"):
                tensors[operand.name] = state[layer.weights[operand.name]].detach().to(DTYPES[operand.dtype])
        scalars = tuple(float(state[key]) for key in layer.scalars)
        for choice in choices(store, layer.problem, self.device):
            try:
                step = bind(choice.candidate, layer.problem, tensors, scalars, self.device, layer.name)
            except EngineError:
                continue  # it refuses this size, or its code does not load here: the next is as right
            return BoundLayer(layer, choice, step)
        choice = torch_choice(layer.problem)
        return BoundLayer(layer, choice, bind(choice.candidate, layer.problem, tensors, scalars, self.device, layer.name))

    # -- the CUDA graph --------------------------------------------------------------------------------------

    def _capture(self) -> None:
        first = max(i for i, bound in enumerate(self.bound) if INPUT in bound.layer.buffers.values()) + 1
        last = min(i for i, bound in enumerate(self.bound) if OUTPUT in bound.layer.buffers.values())
        self._head, self._tail = _runs(self.bound[:first]), _runs(self.bound[last:])
        inner = self.bound[first:last]
        if not inner:
            return
        main, side = torch.cuda.Stream(self.device), torch.cuda.Stream(self.device)
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
            with torch.cuda.stream(main):
                for _ in range(3):  # loads what is loaded lazily, and lets torch's libraries choose
                    _execute(_runs(inner), main.cuda_stream, ())
            main.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=main):
                _capture_branches(inner, (main, side))
        torch.cuda.synchronize(self.device)
        self._graph = graph


def _buffers(layers: Sequence[Layer], device: torch.device) -> dict[str, torch.Tensor]:
    """One tensor for each activation that flows between layers."""
    buffers = {}
    for layer in layers:
        for operand in layer.problem.operands():
            name = layer.buffers.get(operand.name)
            if operand.role == "output" and name and name not in _SLOTS:
                buffers[name] = torch.empty(operand.shape, dtype=DTYPES[operand.dtype], device=device)
    return buffers


Run = engine.Program | Step


def _runs(bound: Sequence[BoundLayer], dependent: bool = False) -> list[Run]:
    """Steps in order, neighbouring kernels joined into programs. dependent: whether each may overlap with the last."""
    runs: list[Run] = []
    for item in bound:
        if item.step.function:
            runs.append(item.step)
            continue
        if not runs or isinstance(runs[-1], Step):
            runs.append(engine.Program())
        runs[-1].add(item.step.kernel, item.step.pointers, dependent and len(runs[-1]) > 0)
    return runs


def _execute(runs: Sequence[Run], stream: int, slots: Sequence[torch.Tensor]) -> None:
    addresses = [tensor.data_ptr() for tensor in slots]
    for run in runs:
        if isinstance(run, Step):
            run.run(stream, slots)
        else:
            run.run(stream, addresses)


def _capture_branches(bound: Sequence[BoundLayer], streams: Sequence[torch.cuda.Stream]) -> None:
    """Enqueue layers on the stream of their branch, ordered across branches by the buffers between them."""
    made_by: dict[str, tuple[int, torch.cuda.Event]] = {}
    for chunk in _chunks(bound):
        branch = chunk[0].layer.branch
        stream = streams[branch if not os.environ.get('NOBR') else 0]
        branch=branch if not os.environ.get('NOBR') else 0
        for name in _read(chunk):
            if name in made_by and made_by[name][0] != branch:
                stream.wait_event(made_by[name][1])
        with torch.cuda.stream(stream):
            _execute(_runs(chunk, dependent=not os.environ.get('NOPDL')), stream.cuda_stream, ())
        event = torch.cuda.Event()
        event.record(stream)
        made_by |= {name: (branch, event) for item in chunk for name in _written(item)}
    for branch, event in made_by.values():  # a capture ends only where all its branches have come together
        if branch:
            streams[0].wait_event(event)


def _chunks(bound: Sequence[BoundLayer]) -> Iterator[list[BoundLayer]]:
    """Runs of layers of one branch, cut where one reads from another branch or is read by one."""
    branch_of = {name: item.layer.branch for item in bound for name in _written(item)}
    readers: dict[str, set[int]] = {}
    for item in bound:
        for name in _read([item]):
            readers.setdefault(name, set()).add(item.layer.branch)
    chunk: list[BoundLayer] = []
    for item in bound:
        branch = item.layer.branch
        joins = any(branch_of.get(name, branch) != branch for name in _read([item]))
        if chunk and (chunk[0].layer.branch != branch or joins):
            yield chunk
            chunk = []
        chunk.append(item)
        if any(readers.get(name, {branch}) - {branch} for name in _written(item)):
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _written(item: BoundLayer) -> list[str]:
    outputs = [operand.name for operand in item.layer.problem.operands() if operand.role == "output"]
    return [item.layer.buffers[name] for name in outputs]


def _read(items: Sequence[BoundLayer]) -> list[str]:
    return [name for item in items for name in item.layer.buffers.values() if name not in _written(item)]
