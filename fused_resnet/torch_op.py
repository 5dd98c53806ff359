"""FusedResNet as an operator of torch, for everything that traces: torch.compile, torch.export, jit.trace, make_fx.

`fused_resnet::run(x, network)` is opaque to tracers. `network` is a number that this process has given to a module, so
a traced program runs in the process that traced it, and holds no weights: they are read from the module at each run.
"""

from __future__ import annotations

import itertools
from typing import Protocol
from weakref import WeakValueDictionary

import torch

from autotune.core import AutotuneError


class InputError(AutotuneError, ValueError):
    """An input that the network cannot take."""


class TraceableNetwork(Protocol):
    """What a number stands for."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """The result for an input."""

    def like_result(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor of the result's shape, dtype and strides, made of the (fake) input's kind."""


_networks: WeakValueDictionary[int, TraceableNetwork] = WeakValueDictionary()
_numbers = itertools.count(1)

# Inductor's CUDA graphs must leave it out: it launches a graph of its own, and binds when shapes or weights are new.
_TAGS = [torch.Tag.needs_fixed_stride_order] + [
    getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name)
]
_LIBRARY = torch.library.Library("fused_resnet", "DEF")
_LIBRARY.define("run(Tensor x, int network) -> Tensor", tags=_TAGS)


def register(network: TraceableNetwork) -> int:
    """Give a network its number, under which it is known until it is gone."""
    number = next(_numbers)
    _networks[number] = network
    return number


def networks() -> list[TraceableNetwork]:
    """All that are registered and alive."""
    return list(_networks.values())


def call(x: torch.Tensor, number: int) -> torch.Tensor:
    """The operator."""
    return torch.ops.fused_resnet.run(x, number)


def is_traced(x: torch.Tensor) -> bool:
    """Whether somebody records what is called, so that it must be the operator."""
    return (
        torch.compiler.is_compiling()
        or type(x) is not torch.Tensor
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
    )


def refuse_gradient(x: torch.Tensor) -> None:
    """Raise InputError where a gradient by x would be lost without a word."""
    if x.requires_grad and torch.is_grad_enabled():
        raise InputError(
            "the input requires a gradient, and FusedResNet in eval mode computes none: "
            "pass x.detach(), call it under torch.no_grad(), or switch to .train() for the plain network"
        )


def _find(number: int) -> TraceableNetwork:
    network = _networks.get(number)
    if network is None:
        raise InputError(
            f"a traced program calls FusedResNet number {number}, which this process does not have (any more): "
            "trace it again in the process that runs it, and keep the module alive"
        )
    return network


def _run(x: torch.Tensor, network: int) -> torch.Tensor:
    return _find(network).run(x)


def _fake(x: torch.Tensor, network: int) -> torch.Tensor:
    return _find(network).like_result(x)


def _without_gradient(x: torch.Tensor, network: int) -> torch.Tensor:
    refuse_gradient(x)
    with torch._C._AutoDispatchBelowAutograd():
        return call(x, network)


_LIBRARY.impl("run", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("run", _without_gradient, "Autograd")
torch.library.register_fake("fused_resnet::run", _fake, lib=_LIBRARY)
