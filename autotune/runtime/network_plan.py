"""A network bound for one shape, dtype and device: candidates with their weights, and where activations lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import torch

from autotune.ir import DTYPES, INPUT, OUTPUT, Layer, Network, Operand, Source, State
from autotune.ir import tensor as constant
from autotune.runtime import engine
from autotune.runtime.binding import BoundStep, TensorSlot, bind
from autotune.runtime.engine import EngineError
from autotune.runtime.memory_planner import LayerAccess, plan_memory
from autotune.runtime.selection import KernelChoice, choices, select, torch_choice

if TYPE_CHECKING:
    from tuning_db.protocols import Database

Executable = engine.Program | engine.Graph | BoundStep
"""What a plan executes: kernels in a row, a graph of kernels, or one of torch's operators."""

_SLOTS = {INPUT: TensorSlot(0), OUTPUT: TensorSlot(1)}

CHANNELS_LAST = "channels_last"
"""The launch value of kernels that read the caller's image in either order: 1 if it is channels last in memory."""


@dataclass(frozen=True)
class BoundLayer:
    """A layer, what runs it, and why."""

    layer: Layer
    choice: KernelChoice
    step: BoundStep

    @property
    def kernel(self) -> engine.Prepared:
        """The kernel of a layer that runs on one of ours."""
        assert self.step.kernel
        return self.step.kernel


class NetworkPlan:
    """A network's layers bound for one shape, dtype, device and order of the input: kernels, weights, and places.

    What a run writes to is an `ExecutionContext` (executor.py), so one plan serves several streams at once.

    channels_last: the caller's input is channels last in memory. graph: on a GPU, replay a CUDA graph.
    """

    def __init__(
        self,
        network: Network,
        state: State,
        store: Database,
        device: torch.device,
        graph: bool,
        channels_last: bool = False,
    ) -> None:
        layers, settled = select(store, network, device)
        self.network, self.device, self.graph = network, device, graph and device.type == "cuda"
        self.buffers = _activations(layers)
        self.output = _operand(layers[-1], OUTPUT)
        self.copies_input = False
        self._channels_last = channels_last
        slots = {name: TensorSlot(index) for index, name in enumerate([INPUT, OUTPUT, *self.buffers])}
        self.bound = [
            self._bind(layer, state, store, settled.get(layer.name), slots, TensorSlot(len(slots) + i))
            for i, layer in enumerate(layers)
        ]
        accesses = [LayerAccess(frozenset(layer.reads), frozenset(layer.writes)) for layer in layers]
        self.arena = plan_memory({name: operand.bytes for name, operand in self.buffers.items()}, accesses)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the weights are in their order, for whichever stream comes first

    @property
    def native(self) -> bool:
        """Whether all layers run on kernels of ours."""
        return all(item.step.kernel for item in self.bound)

    @property
    def workspaces(self) -> list[int]:
        """Bytes of each layer's workspace."""
        return [item.step.kernel.workspace_bytes if item.step.kernel else 0 for item in self.bound]

    def _bind(
        self,
        layer: Layer,
        state: State,
        store: Database,
        settled: KernelChoice | None,
        slots: Mapping[str, TensorSlot],
        workspace: TensorSlot,
    ) -> BoundLayer:
        for choice in chain([settled] if settled else [], choices(store, layer.problem, self.device)):
            try:
                return bind_layer(layer, self._for_input(layer, choice), slots, state, self.device, workspace)
            except EngineError:
                continue  # it refuses this size, or its code does not load here: the next is as right
        return bind_layer(layer, torch_choice(layer.problem), slots, state, self.device, workspace)

    def _for_input(self, layer: Layer, choice: KernelChoice) -> KernelChoice:
        """The choice, told of the input's order where it reads the input and can read either; else it is copied."""
        if not self._channels_last or INPUT not in layer.buffers.values() or choice.candidate.kind is None:
            return choice
        if CHANNELS_LAST not in choice.candidate.launch:
            self.copies_input = True
            return choice
        launch = {**choice.candidate.launch, CHANNELS_LAST: 1}
        return replace(choice, candidate=replace(choice.candidate, launch=launch))


def _operand(layer: Layer, buffer: str) -> Operand:
    """The operand of a layer that lies in a buffer."""
    return next(operand for operand in layer.problem.operands() if layer.buffers.get(operand.name) == buffer)


def _activations(layers: Sequence[Layer]) -> dict[str, Operand]:
    """What flows between layers, as its maker writes it."""
    return {
        name: operand
        for layer in layers
        for operand in layer.problem.operands()
        if operand.role == "output" and (name := layer.buffers[operand.name]) not in _SLOTS
    }


def make_buffers(layers: Sequence[Layer], device: torch.device) -> dict[str, torch.Tensor]:
    """One tensor for each activation that flows between layers."""
    return {
        name: torch.empty(operand.shape, dtype=DTYPES[operand.dtype], device=device)
        for name, operand in _activations(layers).items()
    }


def bind_layer(
    layer: Layer,
    choice: KernelChoice,
    buffers: Mapping[str, torch.Tensor] | Mapping[str, TensorSlot],
    state: State,
    device: torch.device,
    workspace: TensorSlot | None = None,
) -> BoundLayer:
    """Bind a candidate to a layer's buffers and weights (`state`: a state_dict); raises EngineError."""
    tensors: dict[str, torch.Tensor | TensorSlot] = {}
    for operand in layer.problem.operands():
        if operand.role in ("weight", "vector"):
            tensors[operand.name] = _constant(state, layer.weights[operand.name], operand, device)
        else:
            name = layer.buffers[operand.name]
            place = _SLOTS[name] if name in _SLOTS else buffers[name]
            tensors[operand.name] = place if isinstance(place, TensorSlot) else place.view(operand.shape)
    scalars = tuple(float(constant(state, source)) for source in layer.scalars)
    step = bind(choice.candidate, layer.problem, tensors, scalars, device, layer.name, workspace)
    return BoundLayer(layer, choice, step)


def _constant(state: State, source: Source, operand: Operand, device: torch.device) -> torch.Tensor:
    """In torch's own order in memory: the caller's module may have its weights channels last."""
    return constant(state, source).to(device, DTYPES[operand.dtype]).reshape(operand.shape).contiguous()


def make_graph(bound: Sequence[BoundLayer], slots: Sequence[int | None] = ()) -> engine.Graph:
    """All kernels as a CUDA graph, each after those that write what it reads.

    slots: addresses that stay, or None for those that each run gives, as it does all beyond them.
    """
    graph = engine.Graph(slots)
    made_by: dict[str, int] = {}
    for item in bound:
        after = sorted({made_by[name] for name in item.layer.reads if name in made_by})
        number = graph.add(item.kernel, item.step.pointers, after, item.choice.overlap)
        made_by |= dict.fromkeys(item.layer.writes, number)
    return graph


def make_runs(bound: Sequence[BoundLayer], slots: Sequence[int | None] = ()) -> list[Executable]:
    """Steps in order, neighbouring kernels joined into programs. slots: as make_graph has them."""
    runs: list[Executable] = []
    for item in bound:
        if item.step.function:
            runs.append(item.step)
            continue
        if not runs or not isinstance(runs[-1], engine.Program):
            runs.append(engine.Program(slots))
        program = runs[-1]
        assert isinstance(program, engine.Program)
        program.add(item.kernel, item.step.pointers, item.choice.overlap)
    return runs


def capture(runs: Sequence[Executable], device: torch.device, slots: Sequence[torch.Tensor]) -> torch.cuda.CUDAGraph:
    """Runs in a row as a CUDA graph of torch's, for plans with torch operators among them."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    with torch.cuda.device(device), torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(3):  # loads what is loaded lazily, and lets torch's libraries choose
                execute(runs, stream.cuda_stream, slots)
        stream.synchronize()
        # Other threads may meanwhile do what a capture forbids its own, such as waiting for their streams.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            execute(runs, stream.cuda_stream, slots)
        torch.cuda.synchronize()
    return graph


def execute(runs: Sequence[Executable], stream: int, slots: Sequence[torch.Tensor]) -> None:
    """Run them in order on a stream (0 on a CPU), with the tensors in slots, from the first."""
    addresses = [tensor.data_ptr() for tensor in slots]
    for run in runs:
        if isinstance(run, BoundStep):
            run.run(stream, slots)
        else:
            run.run(stream, addresses)
