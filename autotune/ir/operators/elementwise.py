"""Epilogue without an operator before it."""

from __future__ import annotations

from typing import ClassVar

from autotune.ir.operators.pixelwise import Pixelwise
from autotune.ir.problem.registry import register


@register
class Elementwise(Pixelwise):
    """An epilogue of its own, where there is no kernel to append it to: y = epilogue(x), both (n, h, w, c)."""

    operator: ClassVar[str] = "elementwise"
    broadcasts: ClassVar[bool] = True
