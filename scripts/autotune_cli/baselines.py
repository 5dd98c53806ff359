"""The variants that `autotune bench` times: eager torch, TorchScript, CUDA graphs, torch.compile, and FusedResNet."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autotune.libraries.inductor_timing import kernels_timed_in_turns
from autotune_cli.models import Model
from fused_resnet.compile_backend import autotune
from tuning_db import Store

FROM_ANOTHER = "fused from "
"""Prefix of the names of variants that run FusedResNet on a database of --against."""
TURN_SECONDS = 120.0
"""Longest wait for the turn on a GPU. It is longer than a bench's timing, which is one turn."""
CAPTURE_WARM_UPS = 10  # TorchScript optimizes during its first calls, cuDNN searches during its very first

Forward = Callable[[], object]
"""Runs the network once and returns its results: a tensor, or a container of tensors."""


@dataclass(frozen=True)
class BaselineInput:
    """A network, its input on the device, and the expected output."""

    model: Model  # float32, on the CPU
    database: str  # empty if no variant reads it
    precision: str | None  # FusedResNet's `precision`
    x: Tensor
    expected: Tensor  # of `flat`
    train: bool = False  # a training step instead of inference
    amp: torch.dtype | None = None  # in a training step the dtype of torch.autocast, with weights in float32

    @property
    def device(self) -> torch.device:
        """Return the device that the network runs on."""
        return self.x.device

    def eager(self, layout: torch.memory_format = torch.contiguous_format) -> nn.Module:
        """Return a copy of the network on the device, in this memory layout."""
        network: Any = copy.deepcopy(self.model.module).requires_grad_(self.train)  # Any: no stub has memory_format
        dtype = torch.float32 if self.amp else self.x.dtype
        ready: nn.Module = network.train(self.train).to(self.device, dtype, memory_format=layout)
        return ready

    def context(self) -> AbstractContextManager[object]:
        """Return the context in which calls run."""
        return nullcontext() if self.train else torch.inference_mode()

    def nhwc(self) -> tuple[nn.Module, Tensor]:
        """Return the network and its input, both channels-last."""
        return self.eager(torch.channels_last), self.x.contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Variant:
    """One way to run the network."""

    name: str
    label: str
    layout: str
    build: Callable[[BaselineInput], Forward]
    gpu_only: bool = False
    is_fused: bool = False
    reads_database: bool = False


def eager(case: BaselineInput) -> Forward:
    network = case.eager()
    return lambda: network(case.x)


def channels_last(case: BaselineInput) -> Forward:
    network, x = case.nhwc()
    return lambda: network(x)


def jit(case: BaselineInput) -> Forward:
    network = scripted(case.eager(), case.x)
    return lambda: network(case.x)


def jit_frozen_graph(case: BaselineInput) -> Forward:
    network, x = case.nhwc()
    return captured(torch.jit.freeze(scripted(network, x)), x)


def cuda_graph(case: BaselineInput) -> Forward:
    return captured(*case.nhwc())


def compiled(case: BaselineInput) -> Forward:
    return inductor(case, "reduce-overhead" if case.device.type == "cuda" else "default")


def compiled_frozen(case: BaselineInput) -> Forward:
    """Return the same with constant folding of the weights (freezing), which folds batch norms into convolutions."""
    return inductor(case, "reduce-overhead" if case.device.type == "cuda" else "default", freezing=True)


def compiled_max(case: BaselineInput) -> Forward:
    """Return torch.compile's strongest setting: max-autotune with constant folding of the weights (freezing)."""
    return inductor(case, "max-autotune", freezing=True)


def untuned(case: BaselineInput) -> Forward:
    """Return the network behind torch.compile(backend="autotune") on a database that holds nothing, with freezing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        Store.create(path).close()
        network, x = case.nhwc()
        ready = torch.compile(network, backend=autotune, dynamic=False, options={"tuning_db": str(path)})
        with torch._inductor.config.patch(freezing=True), torch.inference_mode():
            ready(x)  # while the database is there
    return lambda: ready(x)


def fused(case: BaselineInput, database: str = "") -> Forward:
    network = case.model.fused_for(case.x, database or case.database, case.precision)
    return lambda: network(case.x)


def fused_full(case: BaselineInput) -> Forward:
    """Return FusedResNet without the case's precision: all layers compute in the dtype of the tensors."""
    return fused(replace(case, precision=None))


VARIANTS = [
    Variant("eager", "eager", "NCHW", eager),
    Variant("channels_last", "eager, channels_last", "NHWC", channels_last),
    Variant("jit", "torch.jit", "NCHW", jit),
    Variant("jit_frozen+graph", "torch.jit frozen + CUDA graph", "NHWC", jit_frozen_graph, gpu_only=True),
    Variant("cuda_graph", "channels_last + CUDA graph", "NHWC", cuda_graph, gpu_only=True),
    Variant("compile", "torch.compile", "NHWC", compiled),
    Variant("compile_frozen", "torch.compile, frozen", "NHWC", compiled_frozen),
    Variant("compile_max", "torch.compile max-autotune", "NHWC", compiled_max),
    Variant("untuned", "torch.compile autotune, untuned", "NHWC", untuned, is_fused=True),
    Variant("fused_full", "FusedResNet, full precision", "NCHW", fused_full, is_fused=True, reads_database=True),
    Variant("fused", "FusedResNet", "NCHW", fused, is_fused=True, reads_database=True),
]


def tensors(results: object) -> list[Tensor]:
    """Return the tensors among a network's results, which may also hold numbers, texts and None."""
    return [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]


def flat(results: object) -> Tensor:
    """Return all elements of a network's results in one float32 tensor of one dimension."""
    return torch.cat([tensor.float().flatten() for tensor in tensors(results)])


def from_another(database: Path) -> Variant:
    """Return the variant that runs FusedResNet on a database of --against."""
    name = f"{FROM_ANOTHER}{database.stem}"
    label = name.replace("fused", "FusedResNet")
    build = partial(fused, database=str(database))
    return Variant(name, label, "NCHW", build, is_fused=True, reads_database=True)


def scripted(network: nn.Module, x: Tensor) -> torch.jit.ScriptModule:
    """Return the network in TorchScript: scripted if possible, else traced."""
    try:
        return cast(torch.jit.ScriptModule, torch.jit.script(network))
    except Exception:  # torch.jit.script's errors have no common base
        return cast(torch.jit.ScriptModule, torch.jit.trace(network, x))


@torch.inference_mode()
def captured(network: nn.Module, x: Tensor) -> Forward:
    """Return the network as a CUDA graph. A call copies its input into the graph's buffer, as a user's program must."""
    static = x.clone()
    graph, result = record_graph(lambda: network(static))

    def forward() -> object:
        static.copy_(x)
        graph.replay()
        return result

    return forward


def record_graph(run: Forward) -> tuple[torch.cuda.CUDAGraph, object]:
    """Return a function as a CUDA graph, and the result that each replay fills."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(CAPTURE_WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


def inductor(case: BaselineInput, mode: str, freezing: bool = False) -> Forward:
    """Return the network through torch.compile for a fixed batch size, compiled, without its reports on the terminal.

    Dynamo reads the option `freezing` from Inductor's global config while it traces. Given to torch.compile alone, the
    option would change nothing: the parameters would stay inputs of the graph.
    """
    config = torch._inductor.config
    for report in ("autotune_num_choices_displayed", "max_autotune_report_choices_stats"):
        if hasattr(config, report):  # not in all versions of torch
            setattr(config, report, 0)
    network, x = case.nhwc()
    settings = torch._inductor.list_mode_options(mode) | {"freezing": freezing}
    compiled_network = torch.compile(network, dynamic=False, options=settings)
    with config.patch(freezing=freezing), torch.inference_mode(), kernels_timed_in_turns(case.device, TURN_SECONDS):
        compiled_network(x)
    return lambda: compiled_network(x)
