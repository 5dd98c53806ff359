"""A captured network on kernels of ours, the first config of each layer, on this CPU."""

from __future__ import annotations

import torch
from kernels import built_paths, candidate_of
from torch import nn

from autotune.core import Architecture
from autotune.families import Kernel, family, serving
from autotune.ir import Network
from autotune.runtime import KernelChoice, bind_layer, caller_slots, make_buffers, make_runs
from fused_resnet.call import module_state

DEVICE = torch.device("cpu")


def native_runs(network: Network, model: nn.Module, cpu: Architecture, target: str) -> tuple[list, object]:
    """Return the runs of a network that families of the CPU serve, and the memory that must live as long as they."""
    kernels = {}
    for layer in network.layers:
        chosen = serving(layer.problem, cpu)[0]
        config = chosen.configs_for(layer.problem, cpu)[0]
        kernels[layer.name] = Kernel.of(chosen.name, config, layer.problem.dtype, layer.problem.epilogue, target)
    paths = built_paths(kernels.values())
    buffers, bound = {**caller_slots(network), **make_buffers(network, DEVICE)}, []
    for layer in network.layers:
        kernel = kernels[layer.name]
        launch = family(kernel.family).launches(layer.problem, kernel.values, cpu)[0]
        choice = KernelChoice(candidate_of(kernel, paths[kernel], launch), "tuned")
        bound.append(bind_layer(layer, choice, buffers, module_state(model), DEVICE))
    return make_runs(bound), (bound, buffers)
