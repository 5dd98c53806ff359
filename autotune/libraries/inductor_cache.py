"""Torch's cache of compiled graphs, also for graphs that are compiled without Dynamo and whose weights oneDNN packed.

The key of a cached graph has only shape and dtype of weights that freezing made constants: compiled code takes them
from the graph that is compiled now. Torch passes by the cache in two cases that need not be. It wants the shape
environment that Dynamo makes, though all shapes are numbers. And it does not read the shape of a packed weight, because
such a tensor has no storage that could be pickled. Without the cache each process compiles again.

This module imports torch._inductor: it is imported when something is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._inductor import codecache
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


@contextmanager
def cached_compilation() -> Iterator[None]:
    """Let torch look up what is compiled meanwhile in its cache. The caller holds the lock of torch.compile."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
    with ExitStack() as stack:
        _wrap(stack, codecache.FxGraphCachePickler, "_reduce_tensor", _reduce)
        validator = getattr(codecache, "CacheabilityValidator", None)
        if validator:  # newer versions of torch test weights twice
            _wrap(stack, validator, "check_tensor", _check)
        stack.enter_context(tracing(TracingContext(mode)))
        yield


def _wrap(stack: ExitStack, owner: type, name: str, wrap: Callable[[Callable[..., Any]], object]) -> None:
    """Replace a method until the stack is left."""
    stack.callback(setattr, owner, name, vars(owner)[name])
    setattr(owner, name, wrap(getattr(owner, name)))


def _reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_tensor(pickler: object, tensor: torch.Tensor) -> Any:
        if _is_packed_weight(tensor):
            return str, (f"packed {tensor.dtype} {tuple(tensor.shape)}",)
        return original(pickler, tensor)

    return reduce_tensor


def _check(original: Callable[..., Any]) -> object:
    return staticmethod(lambda tensor: None if _is_packed_weight(tensor) else original(tensor))


def _is_packed_weight(tensor: torch.Tensor) -> bool:
    """Return whether oneDNN packed a weight that freezing made a constant."""
    return tensor.is_mkldnn and bool(getattr(tensor, "_is_frozen_param", False))
