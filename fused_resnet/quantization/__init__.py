"""Networks in 8-bit formats: calibration and rewriting."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fused_resnet.quantization.scales import CalibratedScales

if TYPE_CHECKING:
    from fused_resnet.quantization.byte_rewrite import capture_bytes
    from fused_resnet.quantization.calibrate import compare
    from fused_resnet.quantization.ranges import DEFAULT_METHOD, METHODS

__all__ = ["DEFAULT_METHOD", "METHODS", "CalibratedScales", "capture_bytes", "compare"]

_MODULES = {"DEFAULT_METHOD": "ranges", "METHODS": "ranges", "capture_bytes": "byte_rewrite", "compare": "calibrate"}


def __getattr__(name: str) -> Any:
    # Late imports: a program that runs a network reads scales and does not load what calibrates and captures.
    if name in _MODULES:
        return getattr(import_module(f"fused_resnet.quantization.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'fused_resnet.quantization' has no attribute '{name}'")
