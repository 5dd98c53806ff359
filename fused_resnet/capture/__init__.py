"""Any module as a Network: traced, constants folded, chains of operators found, the rest left to torch."""

from __future__ import annotations

from torch import nn

from autotune.ir.network import Network, digest
from autotune.ir.problem import dtype_name
from fused_resnet.capture.alternatives import alternatives
from fused_resnet.capture.lower import Lowering
from fused_resnet.capture.trace import trace
from fused_resnet.quantization.calibrate import Scales
from fused_resnet.quantization.int8_rewrite import in_bytes


def capture(model: nn.Module, shape: tuple[int, ...], dtype: str, scales: Scales | None = None) -> Network:
    """The layers of a module in eval mode for one input shape.

    shape: of the input, in torch's order, such as (N, C, H, W). dtype: the project's name of the dtype that the
    module's tensors have; tf32 for float32 whose products are rounded. scales: of the activations (quantize.calibrate),
    if what gains by it is to run in signed bytes. Layers are called by the submodules' paths, the network by the
    module's class. Raises CaptureError, which names the submodule that stands in the way.
    """
    traced = trace(model, shape, dtype_name(dtype))
    layers, kept = Lowering(traced, dtype_name(dtype)).layers(), dict[str, str]()
    if scales is not None:
        layers, kept = in_bytes(layers, scales)
    size, precision = "x".join(map(str, shape[1:])), "" if scales is None else "+s8"
    key = f"{type(model).__name__} n={shape[0]} input={size} dtype={dtype_name(dtype)}{precision} {digest(layers)}"
    return Network(key, layers, tuple(traced.output.meta["val"].shape), alternatives(layers), kept)
