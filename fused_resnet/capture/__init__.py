"""Capture: any module as a Network. Constants are folded, operators fused, and the rest is left to torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from autotune.ir import (
    DTYPES,
    CallerTensor,
    Layer,
    Network,
    NetworkKey,
    digest,
    dtype_name,
    input_name,
    tensor_dtype_name,
)
from autotune.ir.alternatives import alternatives
from fused_resnet.call import Result, Signature
from fused_resnet.capture.lower import Lowering
from fused_resnet.capture.operators import HANDLERS
from fused_resnet.capture.torch_calls import whole_network
from fused_resnet.capture.trace import trace

__all__ = ["CapturedModule", "Rewrite", "capture", "capture_module"]

Rewrite = Callable[[tuple[Layer, ...]], tuple[tuple[Layer, ...], dict[str, str]]]
"""Layers -> the layers in another precision, and for each layer that was left as it was, the reason."""


@dataclass(frozen=True)
class CapturedModule:
    """A captured module.

    Attributes:
        network: Its layers.
        result: What its forward returns around the tensors that the layers compute.
    """

    network: Network
    result: Result


def capture(
    model: nn.Module, shape: tuple[int, ...], dtype: str, rewrite: Rewrite | None = None, precision: str = ""
) -> Network:
    """Return the layers of a module in eval mode for one input shape.

    Layers are named by the submodules' paths, the network by the module's class.

    Args:
        model: The module to capture.
        shape: Shape of the input in torch's order, such as (N, C, H, W).
        dtype: The project's name of the dtype that the module's tensors have; tf32 for float32 whose products are
            rounded.
        rewrite: Changes the precision of the captured layers.
        precision: Name of the precision that `rewrite` gives, which becomes part of the network's key.

    Raises:
        CaptureError: The module cannot be captured; the message names the submodule that stands in the way.
    """
    dtype = dtype_name(dtype)
    given = Signature((CallerTensor(shape, "f32" if dtype == "tf32" else dtype),))
    return capture_module(model, given, dtype, rewrite, precision).network


def capture_module(
    model: nn.Module, signature: Signature, dtype: str, rewrite: Rewrite | None = None, precision: str = ""
) -> CapturedModule:
    """Return the layers of a module for the arguments of a call, and the structure of its result.

    The arguments and errors are those of `capture`, with any number of inputs.
    """
    traced = trace(model, signature, dtype)
    layers, kept = Lowering(traced, dtype, HANDLERS).layers(), dict[str, str]()
    whole = whole_network(traced, dtype, layers) if rewrite is None else None  # it computes in the module's dtype
    if rewrite is not None:
        layers, kept = rewrite(layers)
    suffix = f"+{precision}" if precision else ""
    properties = [(input_name(i), _property(tensor)) for i, tensor in enumerate(signature.tensors)]
    properties.append(("dtype", dtype + suffix))
    key = NetworkKey(type(model).__name__, signature.leading.shape[0], tuple(properties), digest(layers))
    results = tuple(
        CallerTensor(tuple(value.shape), tensor_dtype_name(value.dtype) or "")
        for value in (node.meta["val"] for node in traced.results)
    )
    others = (*alternatives(layers), *([whole] if whole else []))
    return CapturedModule(Network(key, layers, signature.tensors, results, others, kept), traced.result)


def _property(tensor: CallerTensor) -> str:
    """Return the text of an input in a network's key: its shape without the batch, and a dtype without kernels."""
    return "x".join(map(str, tensor.shape[1:])) + (f":{tensor.dtype}" if tensor.dtype not in DTYPES else "")
