"""Runs a network on the kernels that a tuning database holds for it. Needs no compiler, and imports no tuner."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fused_resnet.module import FusedResNet, InputError

__all__ = ["FusedResNet", "InputError"]


def __getattr__(name: str) -> Any:
    # Late, so that the tuner can use the engine and the graphs without the module that stands on top of them.
    if name in __all__:
        from fused_resnet import module

        return getattr(module, name)
    raise AttributeError(f"module 'fused_resnet' has no attribute '{name}'")
