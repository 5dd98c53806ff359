"""Networks in signed bytes: calibration and rewriting."""

from fused_resnet.quantization.calibrate import compare
from fused_resnet.quantization.int8_rewrite import capture_int8
from fused_resnet.quantization.ranges import DEFAULT_METHOD, METHODS

__all__ = ["DEFAULT_METHOD", "METHODS", "capture_int8", "compare"]
