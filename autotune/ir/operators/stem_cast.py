"""First layers of a network, with a result in an 8-bit format."""

from __future__ import annotations

from typing import ClassVar

from autotune.core import ProblemError
from autotune.ir.byte_formats import BYTE_FORMATS
from autotune.ir.operators.first_layers import FirstLayers
from autotune.ir.problem.fields import DtypeName
from autotune.ir.problem.registry import register


@register
class StemCast(FirstLayers):
    """A stem and the cast of its result to an 8-bit format: y and the epilogue's tensors are in `result`.

    It serves networks whose other layers compute in that format; the scale is the scalar of a step "mul_scalar".
    """

    operator: ClassVar[str] = "stem_cast"
    result: DtypeName

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.result not in BYTE_FORMATS:
            raise ProblemError(f"'{self}': the result must be {' or '.join(BYTE_FORMATS)}")

    @property
    def output_dtype(self) -> str:
        """Return `result`."""
        return self.result

    @property
    def short_name(self) -> str:
        """Return that of the stem, and the result's dtype."""
        return f"{super().short_name} to {self.result}"
