"""Inference of a network on the kernels that a tuning database holds for it. Needs no compiler and imports no tuner."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fused_resnet.capture.activation import Activation
    from fused_resnet.module import FusedResNet, InputError
    from fused_resnet.options import RunOptions, TuneLimits
    from fused_resnet.quantization.calibrate import calibrate
    from fused_resnet.step_explanation import explain_step
    from fused_resnet.tuning import tune

__all__ = ["Activation", "FusedResNet", "InputError", "RunOptions", "TuneLimits", "calibrate", "explain_step", "tune"]

_MODULES = {
    "Activation": "capture.activation",
    "FusedResNet": "module",
    "InputError": "module",
    "RunOptions": "options",
    "TuneLimits": "options",
    "calibrate": "quantization.calibrate",
    "explain_step": "step_explanation",
    "tune": "tuning",
}


def __getattr__(name: str) -> Any:
    # Late imports: a program that runs a network does not load what captures one, and the tuner not the module.
    if name in _MODULES:
        return getattr(import_module(f"fused_resnet.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'fused_resnet' has no attribute '{name}'")
