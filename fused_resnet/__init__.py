"""Runs a network on the kernels that a tuning database holds for it. Needs no compiler, and imports no tuner."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fused_resnet.capture.activation import Activation
    from fused_resnet.module import FusedResNet, InputError

__all__ = ["Activation", "FusedResNet", "InputError"]

_HOMES = {"Activation": "capture.activation", "FusedResNet": "module", "InputError": "module"}


def __getattr__(name: str) -> Any:
    # Late, so that the tuner can use the engine and the graphs without the module that stands on top of them, and
    # whoever runs a network needs nothing that captures one.
    if name in _HOMES:
        return getattr(import_module(f"fused_resnet.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fused_resnet' has no attribute '{name}'")
