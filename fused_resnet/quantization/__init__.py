"""Networks in signed bytes: calibration and rewriting."""

from fused_resnet.quantization.calibrate import calibrate, compare
from fused_resnet.quantization.int8_rewrite import capture_int8
from fused_resnet.quantization.ranges import METHODS

__all__ = ["METHODS", "calibrate", "capture_int8", "compare"]
