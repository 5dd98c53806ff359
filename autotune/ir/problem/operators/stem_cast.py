"""First layers of a network, with a result in another dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autotune.ir.problem.fields import DtypeName
from autotune.ir.problem.operators.stem import Stem
from autotune.ir.problem.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class StemCast(Stem):
    """A stem and the cast of its result: y and the epilogue's tensors are in `result`, everything else in `dtype`.

    It quantizes to an 8-bit format where the layers behind the stem compute in one; the scale is the scalar of a step
    "mul_scalar".
    """

    operator: ClassVar[str] = "stem_cast"
    result: DtypeName

    @property
    def output_dtype(self) -> str:
        """Return `result`."""
        return self.result
