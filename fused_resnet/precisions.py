"""The precisions of networks and the methods of calibration by name, without torch: commands list them in --help."""

TF32, INT8, FP8 = "tf32", "int8", "fp8"

PRECISIONS = {
    TF32: "products of float32 are rounded to TF32",
    INT8: "layers that gain by it run in signed bytes",
    FP8: "layers that gain by it run in 8-bit floating point, e4m3",
}
"""Precisions besides that of the module's dtype, and what they mean."""

PERCENTILE = 99.99
"""Percentage of the magnitudes that the range of the method "percentile" covers."""

METHODS = {
    "max": "the largest magnitude",
    "percentile": f"the magnitude that {PERCENTILE} % of the values do not exceed",
    "mse": "the range with the least mean square error",
}
"""Name of a calibration method -> what the range of an activation is."""
DEFAULT_METHOD = "max"
