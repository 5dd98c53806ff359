"""The ways to run a network that bench.py times: what a user would run instead, and FusedResNet."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from autotune_cli.models import Model
from fused_resnet.model_source import INT8

FROM_ANOTHER = "fused from "
"""How the names begin of what runs from another database than `fused`."""
CAPTURE_WARM_UPS = 10  # TorchScript optimizes during its first calls, cuDNN searches during its very first

Forward = Callable[[], Tensor]


@dataclass(frozen=True)
class Case:
    """A network, its input on the device, and what must come out."""

    model: Model  # float32, on the CPU
    database: str  # empty where no variant reads it
    precision: str | None  # of FusedResNet, beside the input's dtype
    x: Tensor
    expected: Tensor

    @property
    def device(self) -> torch.device:
        """Where the network is to run."""
        return self.x.device

    def eager(self, layout: torch.memory_format = torch.contiguous_format) -> nn.Module:
        """A copy of the network, ready to infer in this layout."""
        network: Any = copy.deepcopy(self.model.module).requires_grad_(False)  # Any: torch's stubs lack memory_format
        ready: nn.Module = network.to(self.device, self.x.dtype, memory_format=layout)
        return ready

    def nhwc(self) -> tuple[nn.Module, Tensor]:
        """The network and its input, both channels-last."""
        return self.eager(torch.channels_last), self.x.contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Variant:
    """One way to run the network."""

    name: str
    label: str
    layout: str
    build: Callable[[Case], Forward]
    gpu_only: bool = False
    is_fused: bool = False


def eager(case: Case) -> Forward:
    network = case.eager()
    return lambda: cast(Tensor, network(case.x))


def channels_last(case: Case) -> Forward:
    network, x = case.nhwc()
    return lambda: cast(Tensor, network(x))


def jit(case: Case) -> Forward:
    network = scripted(case.eager(), case.x)
    return lambda: cast(Tensor, network(case.x))


def jit_frozen_graph(case: Case) -> Forward:
    network, x = case.nhwc()
    return captured(torch.jit.freeze(scripted(network, x)), x)


def cuda_graph(case: Case) -> Forward:
    return captured(*case.nhwc())


def compiled(case: Case) -> Forward:
    return inductor(case, "reduce-overhead" if case.device.type == "cuda" else "default")


def compiled_max(case: Case) -> Forward:
    return inductor(case, "max-autotune")


def fused(case: Case, database: str = "") -> Forward:
    calibration = [case.x.cpu()] if case.precision == INT8 and not case.model.is_ours else None
    network = case.model.fused(database or case.database, case.precision, calibration)
    network.eval().to(case.device, case.x.dtype)
    return lambda: cast(Tensor, network(case.x))


VARIANTS = [
    Variant("eager", "eager", "NCHW", eager),
    Variant("channels_last", "eager, channels_last", "NHWC", channels_last),
    Variant("jit", "torch.jit", "NCHW", jit),
    Variant("jit_frozen+graph", "torch.jit frozen + CUDA graph", "NHWC", jit_frozen_graph, gpu_only=True),
    Variant("cuda_graph", "channels_last + CUDA graph", "NHWC", cuda_graph, gpu_only=True),
    Variant("compile", "torch.compile", "NHWC", compiled),
    Variant("compile_max", "torch.compile max-autotune", "NHWC", compiled_max),
    Variant("fused", "FusedResNet", "NCHW", fused, is_fused=True),
]


def from_another(database: Path) -> Variant:
    """FusedResNet from another database than the one that all are compared with."""
    name = f"{FROM_ANOTHER}{database.stem}"
    return Variant(
        name, name.replace("fused", "FusedResNet"), "NCHW", partial(fused, database=str(database)), is_fused=True
    )


def scripted(network: nn.Module, x: Tensor) -> torch.jit.ScriptModule:
    """The network in TorchScript: compiled from its source where that can be, otherwise traced."""
    try:
        return cast(torch.jit.ScriptModule, torch.jit.script(network))
    except Exception:  # its errors have no common base
        return cast(torch.jit.ScriptModule, torch.jit.trace(network, x))


@torch.inference_mode()
def captured(network: nn.Module, x: Tensor) -> Forward:
    """The network as a CUDA graph. A call copies its input in, since a user has to."""
    static = x.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(CAPTURE_WARM_UPS):
            network(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = cast(Tensor, network(static))

    def forward() -> Tensor:
        static.copy_(x)
        graph.replay()
        return result

    return forward


def inductor(case: Case, mode: str) -> Forward:
    """The network through torch.compile, for this batch size alone, without reports that bury the tables."""
    config = torch._inductor.config
    for report in ("autotune_num_choices_displayed", "max_autotune_report_choices_stats"):
        if hasattr(config, report):  # not in all versions of torch
            setattr(config, report, 0)
    network, x = case.nhwc()
    compiled_network = torch.compile(network, mode=mode, dynamic=False)
    return lambda: cast(Tensor, compiled_network(x))
