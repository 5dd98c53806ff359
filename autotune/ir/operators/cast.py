"""Conversion to another dtype."""

from __future__ import annotations

from typing import ClassVar

from autotune.ir.operators.pixelwise import Pixelwise
from autotune.ir.problem.fields import DtypeName
from autotune.ir.problem.registry import register


@register
class Cast(Pixelwise):
    """Another dtype: y = epilogue(x), both (n, h, w, c), x in `dtype`, y and the epilogue's tensors in `result`.

    It quantizes to an 8-bit format and dequantizes it; the scale is the scalar of a step "mul_scalar".
    """

    operator: ClassVar[str] = "cast"
    broadcasts: ClassVar[bool] = True
    result: DtypeName

    @property
    def output_dtype(self) -> str:
        """Return `result`."""
        return self.result
