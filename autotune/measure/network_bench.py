"""Times a whole network, on a GPU as one CUDA graph, with a candidate for each layer. Runs in the measuring process.

Inside a network a kernel finds other data in the caches and runs between other kernels than when it is timed alone, so
the fastest kernel alone need not be the fastest one in the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from autotune.ir import TENSOR_DTYPES, ConstantSource, Network
from autotune.measure.device_turn import turn
from autotune.measure.interleaving import interleave
from autotune.measure.nvml import Monitor
from autotune.measure.result import Result, timed
from autotune.measure.timers import replay_sampler
from autotune.measure.verify import random_tensor
from autotune.runtime import (
    BoundLayer,
    Candidate,
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


@dataclass(frozen=True)
class LayerAssignment:
    """The candidate that runs a layer, by the layer's name.

    overlap: the kernel may be placed on the GPU while the kernel before it ends (programmatic dependent launch).
    """

    layer: str
    candidate: Candidate
    overlap: bool = False


class NetworkBench:
    """A network on one device with random weights and inputs; keeps the layers that it has bound.

    Args:
        network: The network, with all alternatives of its layers.
        device: The device.
    """

    def __init__(self, network: Network, device: torch.device) -> None:
        self.network, self.device = network, device
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
        self._bound: dict[str, BoundLayer] = {}
        self._monitor = Monitor(device)

    def compare(self, plans: Sequence[Sequence[LayerAssignment]], rounds: int) -> list[Result]:
        """Time several plans, each with one assignment for each layer in order, in interleaved rounds."""
        replays = [self._replay([self._bind(one) for one in plan]) for plan in plans]
        with turn(self.device):
            samplers = [replay_sampler(replay, self.device) for replay in replays]
            taken = interleave(samplers, rounds, self._monitor.slowed)
        return [timed(samples) for samples in taken.samples]

    def _replay(self, bound: Sequence[BoundLayer]) -> Callable[[], None]:
        """Return one run of the network: on a GPU our CUDA graph if all kernels are ours, else one of torch's."""
        slots = list(self._callers.values())
        if self.device.type != "cuda":
            runs = make_runs(bound)
            return lambda: execute(runs, 0, slots)
        if all(item.step.kernel for item in bound):
            graph, stream = make_graph(bound, self.device), torch.cuda.current_stream(self.device).cuda_stream
            addresses = [tensor.data_ptr() for tensor in slots]
            return lambda: graph.run(stream, addresses)
        return TorchGraph(make_runs(bound), self.device, slots).replay

    def _bind(self, assignment: LayerAssignment) -> BoundLayer:
        key = f"{assignment}"
        if key not in self._bound:
            choice = KernelChoice(assignment.candidate, "", overlap=assignment.overlap)
            layer = self._layers[assignment.layer]
            self._bound[key] = bind_layer(layer, choice, self._buffers, self._state, self.device)
        return self._bound[key]
