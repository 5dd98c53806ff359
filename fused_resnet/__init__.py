"""Runs a network on the kernels that a tuning database holds for it. Needs no compiler, and imports no tuner."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fused_resnet.capture.activation import Activation
    from fused_resnet.module import FusedResNet, InputError

__all__ = ["Activation", "FusedResNet", "InputError"]


def __getattr__(name: str) -> Any:
    # Late, so that the tuner can use the engine and the graphs without the module that stands on top of them.
    if name in __all__:
        from fused_resnet import module
        from fused_resnet.capture import activation

        return getattr(activation if name == "Activation" else module, name)
    raise AttributeError(f"module 'fused_resnet' has no attribute '{name}'")
