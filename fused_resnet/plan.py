"""A network bound for one shape, dtype and device: candidates, buffers, and on a GPU a CUDA graph."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from autotune.problem import DTYPES
from fused_resnet import engine
from fused_resnet.binding import Slot, Step, bind
from fused_resnet.derived import State
from fused_resnet.derived import tensor as constant
from fused_resnet.engine import EngineError
from fused_resnet.graph import INPUT, OUTPUT, Layer, Network
from fused_resnet.selection import Choice, choices, select, torch_choice
from tuning_db import Store

Run = engine.Program | engine.Graph | Step
"""What a plan executes: kernels in a row, a graph of kernels, or one of torch's operators."""

_SLOTS = {INPUT: Slot(0), OUTPUT: Slot(1)}


@dataclass(frozen=True)
class BoundLayer:
    """A layer, what runs it, and why."""

    layer: Layer
    choice: Choice
    step: Step

    @property
    def kernel(self) -> engine.Prepared:
        """The kernel of a layer that runs on one of ours."""
        assert self.step.kernel
        return self.step.kernel


class Plan:
    """Runs a network's layers. Everything that can be done once is done here.

    On a GPU the whole network is one CUDA graph, which takes the caller's tensors as they come. Where some layers run
    on torch's operators, those between the first and the last are captured by torch, with its memory pool.
    """

    def __init__(
        self,
        network: Network,
        state: State,
        store: Store,
        device: torch.device,
        graph: bool,
    ) -> None:
        layers, settled = select(store, network, device)
        self.device = device
        self._buffers = make_buffers(layers, device)
        self.bound = [self._bind(layer, state, store, settled.get(layer.name)) for layer in layers]
        self.output_shape = layers[-1].problem.output_shape
        self._dtype = DTYPES[layers[-1].problem.dtype]
        self._lock = threading.Lock()  # callers share the buffers
        self._plain = make_runs(self.bound)
        self._runs: list[Run] = self._plain
        if device.type == "cuda" and graph:
            native = all(bound.step.kernel for bound in self.bound)
            self._runs = [make_graph(self.bound)] if native else self._captured()

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """x (N, C, H, W), contiguous, on the plan's device, in its dtype -> (N, K, P, Q), channels last in memory."""
        y = torch.empty(self.output_shape, dtype=self._dtype, device=self.device)
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device).cuda_stream
            runs = self._plain if torch.cuda.is_current_stream_capturing() else self._runs
        else:
            stream, runs = 0, self._plain
        with self._lock, torch.no_grad():
            _execute(runs, stream, (x, y))
        return y.permute(0, 3, 1, 2)

    # -- binding ---------------------------------------------------------------------------------------------

    def _bind(self, layer: Layer, state: State, store: Store, settled: Choice | None) -> BoundLayer:
        for choice in [*([settled] if settled else []), *choices(store, layer.problem, self.device)]:
            try:
                return bind_layer(layer, choice, self._buffers, state, self.device)
            except EngineError:
                continue  # it refuses this size, or its code does not load here: the next is as right
        return bind_layer(layer, torch_choice(layer.problem), self._buffers, state, self.device)

    def _captured(self) -> list[Run]:
        """Head, captured middle and tail: the head and the tail touch the caller's tensors."""
        first = max(i for i, bound in enumerate(self.bound) if INPUT in bound.layer.buffers.values()) + 1
        last = min(i for i, bound in enumerate(self.bound) if OUTPUT in bound.layer.buffers.values())
        middle = make_runs(self.bound[first:last])
        if not middle:
            return self._plain
        graph = capture(middle, self.device, ())
        replay = Step("captured", function=lambda _: graph.replay())
        return [*make_runs(self.bound[:first]), replay, *make_runs(self.bound[last:])]


def make_buffers(layers: Sequence[Layer], device: torch.device) -> dict[str, torch.Tensor]:
    """One tensor for each activation that flows between layers."""
    buffers = {}
    for layer in layers:
        for operand in layer.problem.operands():
            name = layer.buffers.get(operand.name)
            if operand.role == "output" and name and name not in _SLOTS:
                buffers[name] = torch.empty(operand.shape, dtype=DTYPES[operand.dtype], device=device)
    return buffers


def bind_layer(
    layer: Layer,
    choice: Choice,
    buffers: Mapping[str, torch.Tensor],
    state: State,
    device: torch.device,
) -> BoundLayer:
    """Bind a candidate to a layer's buffers and weights (`state`: a state_dict); raises EngineError."""
    tensors: dict[str, torch.Tensor | Slot] = {}
    for operand in layer.problem.operands():
        if operand.role in ("weight", "vector"):
            tensors[operand.name] = constant(state, layer.weights[operand.name]).to(DTYPES[operand.dtype])
        else:
            name = layer.buffers[operand.name]
            tensors[operand.name] = _SLOTS[name] if name in _SLOTS else buffers[name].view(operand.shape)
    scalars = tuple(float(state[key]) for key in layer.scalars)
    return BoundLayer(layer, choice, bind(choice.candidate, layer.problem, tensors, scalars, device, layer.name))


def make_graph(bound: Sequence[BoundLayer]) -> engine.Graph:
    """All kernels as a CUDA graph, each after those that write what it reads."""
    graph = engine.Graph()
    made_by: dict[str, int] = {}
    for item in bound:
        after = sorted({made_by[name] for name in _read(item) if name in made_by})
        number = graph.add(item.kernel, item.step.pointers, after, item.choice.overlap)
        made_by |= dict.fromkeys(_written(item), number)
    return graph


def make_runs(bound: Sequence[BoundLayer]) -> list[Run]:
    """Steps in order, neighbouring kernels joined into programs."""
    runs: list[Run] = []
    for item in bound:
        if item.step.function:
            runs.append(item.step)
            continue
        if not runs or not isinstance(runs[-1], engine.Program):
            runs.append(engine.Program())
        program = runs[-1]
        assert isinstance(program, engine.Program)
        program.add(item.kernel, item.step.pointers)
    return runs


def capture(runs: Sequence[Run], device: torch.device, slots: Sequence[torch.Tensor]) -> torch.cuda.CUDAGraph:
    """Runs in a row as a CUDA graph of torch's, for plans with torch operators among them."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    with torch.cuda.device(device), torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(3):  # loads what is loaded lazily, and lets torch's libraries choose
                _execute(runs, stream.cuda_stream, slots)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            _execute(runs, stream.cuda_stream, slots)
        torch.cuda.synchronize()
    return graph


def _execute(runs: Sequence[Run], stream: int, slots: Sequence[torch.Tensor]) -> None:
    addresses = [tensor.data_ptr() for tensor in slots]
    for run in runs:
        if isinstance(run, Step):
            run.run(stream, slots)
        else:
            run.run(stream, addresses)


def _written(item: BoundLayer) -> list[str]:
    outputs = [operand.name for operand in item.layer.problem.operands() if operand.role == "output"]
    return [item.layer.buffers[name] for name in outputs]


def _read(item: BoundLayer) -> list[str]:
    return [name for name in item.layer.buffers.values() if name not in _written(item)]
