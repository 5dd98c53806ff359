"""Times a whole network, on a GPU as one CUDA graph, with a candidate for each layer. Runs in the measuring process.

Inside a network a kernel finds other data in the caches and runs between other kernels than when it is timed alone, so
the fastest kernel alone need not be the fastest one in the network.

It also runs beside other kernels: those that do not depend on each other run at the same time, and a kernel may start
while the one before it ends. So a plan can be wrong although each of its kernels is right. The fastest plan of a
comparison therefore runs again, and has to compute the same bits as its kernels one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from autotune.core import LayerError
from autotune.core.device_turn import turn
from autotune.ir import TENSOR_DTYPES, ConstantSource, Network, Problem
from autotune.measure.protocol import LayerAssignment, Result, timed
from autotune.measure.resources import Monitor
from autotune.measure.timers import Call, Sampler, interleave, replay_sampler, stream_of, throttling
from autotune.measure.verify import random_tensor
from autotune.runtime import (
    BoundLayer,
    BoundStep,
    Candidate,
    CapturedLayers,
    CapturePlace,
    KernelChoice,
    TensorSlot,
    TorchGraph,
    bind_layer,
    caller_slots,
    execute,
    make_buffers,
    make_graph,
    make_runs,
)
from autotune.runtime.engine import EngineError

_Plan = tuple[int, ...]

_KEPT_GRAPHS = 256
"""Graphs of torch that a bench keeps."""
_CHECKS = 2
"""Runs of a plan that have to give the same bits."""
_NAN_BYTE = 0xFF
"""A floating-point number of such bytes is NaN."""


@dataclass(frozen=True)
class _Ready:
    """A plan that can be timed.

    Attributes:
        replay: Runs it once.
        sampler: Its warm sampler.
    """

    replay: Call
    sampler: Sampler


class NetworkBench:
    """A network on one device with random weights and inputs; keeps the layers that it has bound.

    Args:
        network: The network, with all alternatives of its layers.
        device: The device.
        compiled: Returns the step of a problem's candidate that this process has compiled before, on tensors of its
            own; None if there is none. Such a step of the whole network is timed as it is.
    """

    def __init__(
        self,
        network: Network,
        device: torch.device,
        compiled: Callable[[Problem, Candidate], BoundStep | None] = lambda *_: None,
    ) -> None:
        self.network, self.device, self._compiled = network, device, compiled
        generator = torch.Generator(device).manual_seed(0)
        self._layers = {layer.name: layer for layer in network.all_layers}
        self._buffers: dict[str, torch.Tensor | TensorSlot] = {**caller_slots(network), **make_buffers(network, device)}
        self._state: dict[ConstantSource, torch.Tensor] = {}
        # Zeros for integers, which are valid as indices, and for inputs that no layer reads.
        self._callers = {
            name: torch.zeros(tensor.shape, dtype=TENSOR_DTYPES[tensor.dtype], device=device)
            for name, tensor in zip(network.callers, (*network.inputs, *network.results), strict=True)
        }
        for layer in network.all_layers:
            for operand in layer.problem.operands():
                if operand.name in layer.weights:
                    self._state[layer.weights[operand.name]] = random_tensor(operand, generator)
                elif layer.buffers[operand.name] in self._callers:
                    self._callers[layer.buffers[operand.name]] = random_tensor(operand, generator)
            self._state |= dict.fromkeys(layer.scalars, torch.full((1,), 0.5))
        self._copies = [torch.empty_like(tensor) for tensor in self._callers.values()]
        self._bound: dict[str, BoundLayer] = {}
        self._checked: set[_Plan] = set()
        self._ready: dict[_Plan, _Ready] = {}
        self._captured: dict[_Plan, TorchGraph] = {}
        self._place: CapturePlace | None = None
        self._monitor = Monitor(device)

    def compare(self, plans: Sequence[Sequence[LayerAssignment]], rounds: int) -> list[Result]:
        """Time several plans, each with one assignment for each layer in order, in interleaved rounds.

        The plans of the comparison before need no capture and no warm-up: one of them is what a search changes next.

        Returns:
            A result for each plan. That of the fastest plan is "wrong" if the plan computes other bits than its kernels
            one after the other.
        """
        bound = [[self._bind(one) for one in plan] for plan in plans]
        known, self._ready = self._ready, {}
        with turn(self.device):
            self._monitor.begin()  # before the warm-up: one round is too short to tell the load of a CPU
            for layers in bound:
                self._ready[_key(layers)] = known.get(_key(layers)) or self._warm(layers)
            ready = [self._ready[_key(layers)] for layers in bound]
            taken = interleave([one.sampler for one in ready], rounds, self._monitor.slowed)
        results = [timed(samples, throttling(taken, i)) for i, samples in enumerate(taken.samples)]
        best = min(range(len(plans)), key=lambda i: results[i].median_us or math.inf)
        if not self._is_right(bound[best], ready[best].replay):
            results[best] = Result("wrong", "the kernels compute another result together than one after the other")
        return results

    def _is_right(self, bound: Sequence[BoundLayer], replay: Call) -> bool:
        """Return whether a plan repeats what its kernels compute; a plan that does is not run again.

        Operators of libraries may add in any order, so a plan with one of them counts as right.
        """
        key = _key(bound)
        if key in self._checked or not all(layer.step.kernel for layer in bound):
            return True
        if not self._repeats(bound, replay):
            return False
        self._checked.add(key)
        return True

    def _repeats(self, bound: Sequence[BoundLayer], replay: Call) -> bool:
        """Return whether runs of the network give the bits that its kernels give one after the other.

        All tensors that a run writes hold NaN before it. Kernels are deterministic: those that are not fail alone.
        """
        slots, stream = list(self._callers.values()), stream_of(self.device)
        made = slots[len(self.network.inputs) :]
        written = [*made, *(one for one in self._buffers.values() if isinstance(one, torch.Tensor))]

        def one_by_one() -> None:
            for layer in bound:
                layer.step.run(stream, slots)

        def outcome(run: Call) -> list[torch.Tensor]:
            for tensor in written:
                _bytes(tensor).fill_(_NAN_BYTE)
            run()
            return [_bytes(result).clone() for result in made]

        expected = outcome(one_by_one)
        return all(all(map(torch.equal, expected, outcome(replay))) for _ in range(_CHECKS))

    def _warm(self, bound: Sequence[BoundLayer]) -> _Ready:
        replay = self._replay(bound)
        return _Ready(replay, replay_sampler(replay, self.device))

    def _replay(self, bound: Sequence[BoundLayer]) -> Call:
        """Return one run of the network as a FusedResNet runs it: on a GPU as a CUDA graph."""
        slots = list(self._callers.values())
        if self.device.type != "cuda":
            runs = make_runs(bound)
            return lambda: execute(runs, 0, slots)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        if all(item.step.kernel for item in bound):
            graphs = [make_graph(bound, self.device)]
            return lambda: execute(graphs, stream, slots)
        captured = CapturedLayers(bound, self.network.callers, self.device, (), self._copies, self._graph_of_torch)
        return lambda: execute(captured.runs, stream, slots)  # it holds the memory of torch's graph

    def _graph_of_torch(self, bound: Sequence[BoundLayer]) -> TorchGraph:
        """Return torch's graph of some layers, which is captured once: most plans of a search have the same ones."""
        key = _key(bound)
        if key not in self._captured:
            if len(self._captured) == _KEPT_GRAPHS:
                del self._captured[next(iter(self._captured))]
            self._place = self._place or CapturePlace(self.device)
            self._captured[key] = TorchGraph(make_runs(bound), self._place, self._copies)
        return self._captured[key]

    def _bind(self, assignment: LayerAssignment) -> BoundLayer:
        key = f"{assignment}"
        if key not in self._bound:
            choice = KernelChoice(assignment.candidate, "", overlap=assignment.overlap)
            layer = self._layers[assignment.layer]
            step = None
            if self.network.whole and layer in self.network.whole.layers:
                step = self._compiled(layer.problem, assignment.candidate)
            try:
                self._bound[key] = (
                    BoundLayer(layer, choice, step)
                    if step
                    else bind_layer(layer, choice, self._buffers, self._state, self.device)
                )
            except EngineError as error:
                raise LayerError(layer.name, error) from error
        return self._bound[key]


def _key(bound: Sequence[BoundLayer]) -> _Plan:
    """Return what identifies layers of a bench, which keeps all that it has bound."""
    return tuple(map(id, bound))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
