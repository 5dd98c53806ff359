"""Names of dtypes."""

import pytest
import torch

from autotune.core import UnknownNameError
from autotune.ir import (
    dtype_name,
)


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        *[(alias, "f32") for alias in ("f32", "fp32", "float32", "float", torch.float32)],
        *[(alias, "f16") for alias in ("f16", "fp16", "float16", "half", torch.float16, "torch.half")],
        *[(alias, "bf16") for alias in ("bf16", "bfloat16", torch.bfloat16)],
        *[(alias, "s8") for alias in ("s8", "int8", torch.int8)],
        *[(alias, "e4m3") for alias in ("e4m3", "fp8", "float8", "float8_e4m3fn", torch.float8_e4m3fn)],
        ("tf32", "tf32"),
    ],
)
def test_dtype_aliases(spelled, name):
    assert dtype_name(spelled) == name


@pytest.mark.parametrize("spelled", ["int4", torch.float64, "", "F16"])
def test_unknown_dtype_lists_the_known(spelled):
    with pytest.raises(UnknownNameError, match="f32, f16, bf16"):
        dtype_name(spelled)
