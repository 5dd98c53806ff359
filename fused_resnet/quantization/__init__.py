"""Networks in 8-bit formats: calibration and rewriting."""

from fused_resnet.quantization.byte_rewrite import capture_bytes
from fused_resnet.quantization.calibrate import compare
from fused_resnet.quantization.ranges import DEFAULT_METHOD, METHODS

__all__ = ["DEFAULT_METHOD", "METHODS", "capture_bytes", "compare"]
