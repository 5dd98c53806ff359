"""Capture: any module as a Network. Constants are folded, operators fused, and the rest is left to torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from autotune.ir import Layer, Network, NetworkKey, digest, dtype_name
from fused_resnet.capture.alternatives import alternatives
from fused_resnet.capture.lower import Lowering
from fused_resnet.capture.operators import HANDLERS
from fused_resnet.capture.trace import trace
from fused_resnet.result import Result

__all__ = ["CapturedModule", "Rewrite", "capture", "capture_module"]

Rewrite = Callable[[tuple[Layer, ...]], tuple[tuple[Layer, ...], dict[str, str]]]
"""Layers -> the layers in another precision, and for each layer that was left as it was, the reason."""


@dataclass(frozen=True)
class CapturedModule:
    """A captured module.

    Attributes:
        network: Its layers.
        result: What its forward returns around the tensor.
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
    return capture_module(model, shape, dtype, rewrite, precision).network


def capture_module(
    model: nn.Module, shape: tuple[int, ...], dtype: str, rewrite: Rewrite | None = None, precision: str = ""
) -> CapturedModule:
    """Return the layers of a module as `capture` does, and the structure of its result."""
    traced, dtype = trace(model, shape, dtype_name(dtype)), dtype_name(dtype)
    lowering, kept = Lowering(traced, dtype, HANDLERS), dict[str, str]()
    layers = lowering.layers()
    whole = lowering.whole(layers) if rewrite is None else None  # it computes in the module's dtype
    if rewrite is not None:
        layers, kept = rewrite(layers)
    suffix = f"+{precision}" if precision else ""
    properties = (("input", "x".join(map(str, shape[1:]))), ("dtype", dtype + suffix))
    key = NetworkKey(type(model).__name__, shape[0], properties, digest(layers))
    network = Network(
        key, layers, tuple(traced.output.meta["val"].shape), (*alternatives(layers), *([whole] if whole else [])), kept
    )
    return CapturedModule(network, traced.result)
