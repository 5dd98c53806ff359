"""FusedResNet as an operator of torch, for tracers: torch.compile, torch.export, torch.jit.trace, make_fx.

`fused_resnet::run(inputs, network, arguments)` is opaque to tracers. `network` is the number of a module in this
process. A traced program therefore runs only in the process that traced it, and holds no weights: each run reads them
from the module. `arguments` is the text of the call's arguments (call/arguments.py). The results are the tensors that
the layers compute.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakValueDictionary

import torch

from autotune.core import AutotuneError


class InputError(AutotuneError, ValueError):
    """An input, or an argument, that the network does not take."""


class TraceableNetwork(Protocol):
    """A network that tracers record as one operator."""

    def _run_traced(self, inputs: Sequence[torch.Tensor], arguments: str) -> list[torch.Tensor]:
        """Return the tensors that the layers compute for a call."""

    def _like_results(self, inputs: Sequence[torch.Tensor], arguments: str) -> list[torch.Tensor]:
        """Return tensors with the results' shapes, dtypes and strides, fake if the inputs are."""


_networks: WeakValueDictionary[int, TraceableNetwork] = WeakValueDictionary()
_numbers = itertools.count(1)

# Inductor must not capture the operator in a CUDA graph: it launches its own graph, and may bind a plan.
_TAGS = [torch.Tag.needs_fixed_stride_order] + [
    getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name)
]
_LIBRARY = torch.library.Library("fused_resnet", "DEF")
_LIBRARY.define("run(Tensor[] inputs, int network, str arguments) -> Tensor[]", tags=_TAGS)


def register(network: TraceableNetwork) -> int:
    """Return a new number for a network; it stands for the network as long as that exists."""
    number = next(_numbers)
    _networks[number] = network
    return number


def networks() -> list[TraceableNetwork]:
    """Return all registered networks that still exist."""
    return list(_networks.values())


def call(inputs: Sequence[torch.Tensor], number: int, arguments: str) -> list[torch.Tensor]:
    """Call the operator for the network with a number."""
    results: list[torch.Tensor] = torch.ops.fused_resnet.run(inputs, number, arguments)
    return results


def is_traced(x: torch.Tensor) -> bool:
    """Return whether a tracer records this call, so that it must be the operator."""
    return (
        torch.compiler.is_compiling()
        or type(x) is not torch.Tensor
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
    )


def refuse_gradient(x: torch.Tensor) -> None:
    """Check that no gradient with respect to x is wanted.

    Raises:
        InputError: x requires a gradient, which would be lost silently.
    """
    if x.requires_grad and torch.is_grad_enabled():
        raise InputError(
            "the input requires a gradient, and FusedResNet computes none in eval mode: "
            "pass x.detach(), call it under torch.no_grad(), or switch to .train() for the plain network"
        )


def _find(number: int) -> TraceableNetwork:
    network = _networks.get(number)
    if network is None:
        raise InputError(
            f"a traced program calls FusedResNet number {number}, which does not exist in this process: "
            "trace the program again in the process that runs it, and keep the module alive"
        )
    return network


def _run(inputs: Sequence[torch.Tensor], network: int, arguments: str) -> list[torch.Tensor]:
    return _find(network)._run_traced(inputs, arguments)


def _fake(inputs: Sequence[torch.Tensor], network: int, arguments: str) -> list[torch.Tensor]:
    return _find(network)._like_results(inputs, arguments)


def _without_gradient(inputs: Sequence[torch.Tensor], network: int, arguments: str) -> list[torch.Tensor]:
    for x in inputs:
        refuse_gradient(x)
    with torch._C._AutoDispatchBelowAutograd():
        return call(inputs, network, arguments)


_LIBRARY.impl("run", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("run", _without_gradient, "Autograd")
torch.library.register_fake("fused_resnet::run", _fake, lib=_LIBRARY)
