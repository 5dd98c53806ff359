"""The inputs of a call: whether they fit the module, their dtype under autocast, and the stream that they are on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from fused_resnet.torch_op import InputError

_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
_is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
# Both are absent where torch has no CUDA.


def current_stream(inputs: Sequence[torch.Tensor]) -> tuple[int, bool]:
    """Return the handle of the current stream of the inputs' device, 0 for a CPU, and whether it is being captured."""
    x = inputs[0]
    return (_raw_stream(x.get_device()), _is_capturing()) if x.is_cuda else (0, False)


def autocast(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the input in the module's dtype if autocast is on, which takes every floating-point dtype."""
    kind = x.device.type
    if x.is_floating_point() and kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return x.to(_first_weight(module, x).dtype)
    return x


def check_input(module: nn.Module, x: torch.Tensor) -> None:
    """Check that the input is on the module's device and, in floating point, in its dtype, which has kernels.

    Raises:
        InputError: It is not.
    """
    weight = _first_weight(module, x)
    if x.device != weight.device:
        raise InputError(f"the input is on {x.device} and the module on {weight.device}: move one with .to()")
    if x.dtype == weight.dtype == torch.float64:
        raise InputError("the module is torch.float64, for which there are no kernels: convert it with .float()")
    if x.is_sparse:
        raise InputError("the input is sparse, and kernels read dense tensors: convert it with .to_dense()")
    if x.dtype != weight.dtype and x.is_floating_point():
        raise InputError(f"the input is {x.dtype} and the module {weight.dtype}: convert one with .to()")


def _first_weight(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a module's first parameter in floating point; x if it has none."""
    # A loop, because some versions of torch.compile do not support the default of next().
    for parameter in module.parameters():
        if parameter.is_floating_point():
            return parameter
    return x
