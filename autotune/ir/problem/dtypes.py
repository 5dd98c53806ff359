"""The element types of tensors, and their names."""

from __future__ import annotations

import torch

from autotune.core import require_one_of

DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "s8": torch.int8,
    "e4m3": torch.float8_e4m3fn,
}
"""Name -> dtype of the tensors.

tf32: float32 tensors whose products are rounded to TF32. s8: products are summed in int32, the epilogue runs in
float32, and the result is rounded to the nearest integer (ties to even) and saturated. e4m3: products are summed in
float32, and the result is rounded to the nearest number of the format (ties to even) and saturated to +-448."""
TENSOR_DTYPES: dict[str, torch.dtype] = {
    **DTYPES,
    **{"f64": torch.float64, "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8},
    **{"u8": torch.uint8, "bool": torch.bool},
}
"""DTYPES, and the dtypes of tensors that only torch's operators take. i8 are integers, s8 are quantized values."""
_NAMES = {dtype: name for name, dtype in TENSOR_DTYPES.items() if name not in ("tf32", "s8", "e4m3")}
_ALIASES = {
    **{"float32": "f32", "fp32": "f32", "float": "f32"},
    **{"float16": "f16", "fp16": "f16", "half": "f16"},
    **{"bfloat16": "bf16", "tensorfloat32": "tf32", "int8": "s8"},
    **{"float8_e4m3fn": "e4m3", "float8": "e4m3", "fp8": "e4m3"},
}


def dtype_name(dtype: str | torch.dtype) -> str:
    """Return the name in DTYPES of a dtype or alias, such as "f16" for torch.float16, "half" and "fp16".

    Raises:
        UnknownNameError: The dtype is none of them; the message lists the names.
    """
    text = str(dtype).removeprefix("torch.")
    return require_one_of("dtype", _ALIASES.get(text, text), list(DTYPES))


def tensor_dtype_name(dtype: torch.dtype) -> str | None:
    """Return the name in TENSOR_DTYPES of a tensor's dtype; None for complex numbers and other dtypes without one."""
    return _NAMES.get(dtype)
