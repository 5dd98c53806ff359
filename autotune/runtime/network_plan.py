"""A network bound for one shape, dtype and device: its kernels, their weights, and the places of activations."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import torch

from autotune.ir import (
    TENSOR_DTYPES,
    ConstantSource,
    Layer,
    Network,
    Operand,
    State,
    evaluate,
    input_name,
    pack_weight,
)
from autotune.libraries import inductor
from autotune.runtime import engine
from autotune.runtime.activations import activations, place
from autotune.runtime.binding import CHANNELS_LAST, BoundStep, TensorSlot, bind
from autotune.runtime.binding_stream import binding_stream, free_with
from autotune.runtime.engine import EngineError
from autotune.runtime.graph_edges import GraphEdges
from autotune.runtime.memory_planner import aligned
from autotune.runtime.other_sizes import Compiler, differs_in_batch_alone
from autotune.runtime.result_layouts import conversions, with_conversions
from autotune.runtime.selection import KernelChoice, choices, select, torch_choice
from autotune.runtime.shared_constants import SharedConstants

if TYPE_CHECKING:
    from tuning_db.protocols import Database

Executable = engine.Program | engine.Graph | BoundStep
"""A part of a plan that runs in one call: kernels in sequence, a CUDA graph of kernels, or one step."""


class _CompileError(Exception):
    """Inductor cannot compile a layer."""


@dataclass(frozen=True)
class BoundLayer:
    """A layer with the choice that runs it.

    Attributes:
        layer: The layer of the network.
        choice: The candidate, and why it was chosen.
        step: The candidate bound to the layer's tensors.
    """

    layer: Layer
    choice: KernelChoice
    step: BoundStep

    @property
    def kernel(self) -> engine.Prepared:
        """The native kernel; only for a layer that runs on one."""
        assert self.step.kernel
        return self.step.kernel


class NetworkPlan:
    """A network's layers bound for one shape, dtype, device and memory format of each input.

    A plan holds kernels, weights and the memory plan, and is not changed by a run. All that a run writes belongs to an
    `ExecutionContext` (executor.py), so one plan serves several streams at once. On a GPU the weights are memory of the
    stream in binding_stream.py.

    Args:
        network: The network, for these shapes and dtypes.
        state: The module's tensors by name, as in a state_dict.
        store: The tuning database.
        device: Where it runs.
        graph: On a GPU, replay the network as a CUDA graph.
        channels_last: Positions of the inputs that are channels last in memory.
        use_inductor: Compile layers by Inductor where the database says so, or where nothing is tuned.
        avoided: Candidates that failed in runs: the layer's name and the candidate's text. Others take their places.
        in_torch_order: Positions of the results that are wanted in torch's order of axes (result_layouts.py). Those for
            which the database has kernels are converted by layers behind the network.
        constants: The constants of the module's other plans for this state, which this plan shares; None for its own.

    Attributes:
        in_torch_order: Positions of the results that are written in torch's order of axes.
        bound: The layers in the order in which they are launched.
        buffers: The activations between layers, by name.
        arena: Their places in memory.
        copied: Positions of the inputs that are channels last although some layer reads contiguous images only, so
            they have to be copied.
        not_compiled: Why nothing is compiled by Inductor although it is wanted; None if nothing stands in its way.
        compile_failed: Whether that is because Inductor failed.
    """

    def __init__(
        self,
        network: Network,
        state: State,
        store: Database,
        device: torch.device,
        graph: bool,
        channels_last: Collection[int] = (),
        use_inductor: bool = False,
        avoided: Collection[tuple[str, str]] = (),
        in_torch_order: Sequence[int] = (),
        constants: SharedConstants | None = None,
    ) -> None:
        self._avoided, self._constants = avoided, constants or SharedConstants()
        converting = conversions(network, in_torch_order)
        fastest = {i: next(choices(store, layer.problem, device)) for i, layer in converting.items()}
        self._conversions = {i: layer for i, layer in converting.items() if fastest[i].candidate.native}
        self._converters = {one.name: replace(fastest[i], overlap=True) for i, one in self._conversions.items()}
        self.in_torch_order = self._conversions.keys()
        self.network, self.device, self.graph = network, device, graph and device.type == "cuda"
        self._channels_last = {input_name(i): i for i in channels_last}
        self.not_compiled = inductor.why_unavailable(device) if use_inductor else None
        compiler: Compiler = "absent" if self.not_compiled else "present" if use_inductor else "off"
        self.compile_failed = False
        try:
            self._bind_layers(state, store, compiler)
        except _CompileError as error:
            self.not_compiled, self.compile_failed = str(error), True
            self._bind_layers(state, store, "absent")
        free_with(self, device, self.bound)
        self.arena = place([item.layer for item in self.bound], self.buffers)

    @property
    def native(self) -> bool:
        """True if all layers run on native kernels."""
        return all(item.step.kernel for item in self.bound)

    @property
    def is_resized(self) -> bool:
        """True if some layer runs on a kernel that was tuned for images of another size."""
        return any(
            item.choice.tuned_for and not differs_in_batch_alone(item.choice.tuned_for, item.layer.problem)
            for item in self.of_network
        )

    @property
    def of_network(self) -> list[BoundLayer]:
        """The layers of the network, without those that convert its results."""
        return self.bound[: len(self.bound) - len(self._conversions)]

    def empty_inputs(self) -> list[torch.Tensor]:
        """Return tensors like the caller's inputs, with zeros, in the memory formats that the layers read."""
        made = []
        for i, one in enumerate(self.network.inputs):
            x = torch.zeros(one.shape, dtype=TENSOR_DTYPES[one.dtype], device=self.device)
            is_last = i in self._channels_last.values() and i not in self.copied
            made.append(x.contiguous(memory_format=torch.channels_last) if is_last else x)
        return made

    @property
    def workspaces(self) -> list[int]:
        """Size of each layer's workspace in bytes, 0 for a layer without a native kernel."""
        return [item.step.kernel.workspace_bytes if item.step.kernel else 0 for item in self.bound]

    @property
    def activation_bytes(self) -> int:
        """Size of the block of activations in bytes; a result fits into it, too."""
        return max([self.arena.bytes, *(one.bytes for one in self.network.results)])

    @property
    def workspace_bytes(self) -> int:
        """Size of the block of workspaces in bytes."""
        return sum(map(aligned, self.workspaces))

    def _bind_layers(self, state: State, store: Database, compiler: Compiler) -> None:
        """Select and bind all layers; raises _CompileError."""
        selected, settled = select(store, self.network, self.device, compiler)
        layers, settled = with_conversions(selected, self._conversions.values()), settled | self._converters
        self.buffers = activations(layers, self.network.callers)
        self.copied: set[int] = set()
        slots = caller_slots(self.network)
        slots |= {name: TensorSlot(len(slots) + i) for i, name in enumerate(self.buffers)}
        with binding_stream(self.device):
            self.bound = [
                self._bind(layer, state, store, compiler, settled.get(layer.name), slots, TensorSlot(len(slots) + i))
                for i, layer in enumerate(layers)
            ]

    def _bind(
        self,
        layer: Layer,
        state: State,
        store: Database,
        compiler: Compiler,
        settled: KernelChoice | None,
        slots: Mapping[str, TensorSlot],
        workspace: TensorSlot,
    ) -> BoundLayer:
        bound = partial(
            bind_layer,
            buffers=slots,
            state=state,
            device=self.device,
            workspace=workspace,
            constants=self._constants,
        )
        for choice in chain([settled] if settled else [], choices(store, layer.problem, self.device, compiler)):
            if (layer.name, str(choice.candidate)) in self._avoided:
                continue
            try:
                return bound(layer, self._for_input(layer, choice))
            except EngineError as error:
                if choice.candidate.compiled:
                    raise _CompileError(str(error)) from error
                continue  # it refuses this size or cannot be loaded here; the next candidate is as correct
        return bound(layer, torch_choice(layer.problem))

    def _for_input(self, layer: Layer, choice: KernelChoice) -> KernelChoice:
        """Return the choice for inputs that are channels last: a kernel that can read them so is launched so."""
        candidate = choice.candidate
        read = {self._channels_last[name] for name in layer.reads if name in self._channels_last}
        if not read:
            return choice
        if candidate.compiled:
            return replace(choice, candidate=replace(candidate, launch={CHANNELS_LAST: 1}))
        if candidate.kind is None:
            return choice
        if CHANNELS_LAST not in choice.candidate.launch:
            self.copied |= read
            return choice
        launch = {**choice.candidate.launch, CHANNELS_LAST: 1}
        return replace(choice, candidate=replace(choice.candidate, launch=launch))


def caller_slots(network: Network) -> dict[str, TensorSlot]:
    """Return the slots of the caller's tensors by buffer name: the first ones, inputs before results."""
    return {name: TensorSlot(index) for index, name in enumerate(network.callers)}


def bind_layer(
    layer: Layer,
    choice: KernelChoice,
    buffers: Mapping[str, torch.Tensor | TensorSlot],
    state: State,
    device: torch.device,
    workspace: TensorSlot | None = None,
    constants: SharedConstants | None = None,
) -> BoundLayer:
    """Bind a candidate to a layer's buffers and weights.

    Args:
        layer: The layer.
        choice: The candidate to bind.
        buffers: Tensors or slots of the activations and of the caller's tensors, by buffer name.
        state: The module's tensors by name, as in a state_dict.
        device: Where it runs.
        workspace: Slot of the kernel's workspace; without one the step allocates its own.
        constants: Constants that are shared with other layers and plans of this state.

    Raises:
        EngineError: The candidate refuses the problem or cannot be loaded.
    """
    tensors: dict[str, torch.Tensor | TensorSlot] = {}
    shared, keys = constants or SharedConstants(), dict[str, Hashable]()
    for operand in layer.problem.operands():
        if operand.role in ("weight", "vector"):
            source = layer.weights[operand.name]
            key = keys[operand.name] = (source, operand.shape, operand.dtype, device)
            tensors[operand.name] = shared.get(key, partial(_constant, state, source, operand, device))
        else:
            place = buffers[layer.buffers[operand.name]]
            tensors[operand.name] = place if isinstance(place, TensorSlot) else place.view(operand.shape)
    scalars = tuple(float(evaluate(state, source)) for source in layer.scalars)

    def pack(name: str, weight: torch.Tensor, layout: str, groups: int) -> torch.Tensor:
        return shared.get((keys[name], layout, groups), partial(pack_weight, weight, layout, groups))

    step = bind(choice.candidate, layer.problem, tensors, scalars, device, layer.name, workspace, pack)
    return BoundLayer(layer, choice, step)


def _constant(state: State, source: ConstantSource, operand: Operand, device: torch.device) -> torch.Tensor:
    """Return a weight as an operand; contiguous, because the module's own tensor may be channels last."""
    return evaluate(state, source).to(device, TENSOR_DTYPES[operand.dtype]).reshape(operand.shape).contiguous()


def make_graph(bound: Sequence[BoundLayer], device: torch.device, slots: Sequence[int | None] = ()) -> engine.Graph:
    """Return all kernels as a CUDA graph, each after the kernels that write what it reads.

    Args:
        bound: The layers, all with native kernels.
        device: The GPU.
        slots: Address of each slot that is the same in every run; None for a slot that each run provides. Slots beyond
            the last one given are provided by each run, too.
    """
    graph = engine.Graph(device.index or 0, slots)
    add_kernels(graph, bound, {}, GraphEdges())
    return graph


def add_kernels(graph: engine.Graph, bound: Sequence[BoundLayer], made_by: dict[str, int], edges: GraphEdges) -> None:
    """Add kernels to a CUDA graph, each after the nodes that write what it reads.

    Args:
        graph: The graph.
        bound: The layers, all with native kernels.
        made_by: The node that writes each activation, by its name; the kernels' results are added.
        edges: The edges between the graph's nodes.
    """
    for item in bound:
        after = edges.add(made_by[name] for name in item.layer.reads if name in made_by)
        number = graph.add(item.kernel, item.step.pointers, after, item.choice.overlap)
        made_by |= dict.fromkeys(item.layer.writes, number)


def make_runs(bound: Sequence[BoundLayer], slots: Sequence[int | None] = ()) -> list[Executable]:
    """Return the layers as executables in order; consecutive native kernels are joined into one program.

    Args:
        bound: The layers.
        slots: Fixed addresses of slots, as in `make_graph`.
    """
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


def execute(runs: Sequence[Executable], stream: int, slots: Sequence[torch.Tensor]) -> None:
    """Run executables in order.

    Args:
        runs: The executables.
        stream: Handle of a CUDA stream; 0 on a CPU.
        slots: The tensors in the slots, in their order.
    """
    addresses = [tensor.data_ptr() for tensor in slots]
    for run in runs:
        if isinstance(run, BoundStep):
            run.run(stream, slots)
        else:
            run.run(stream, addresses)
