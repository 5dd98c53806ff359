"""First layers of a network."""

from __future__ import annotations

from typing import ClassVar

from autotune.ir.operators.first_layers import FirstLayers
from autotune.ir.problem.registry import register


@register
class Stem(FirstLayers):
    """First layers of a network: x (n, c, h, w) in torch's order, weight (k, c, r, s), y (n, p, q, k).

    y = epilogue(max_pool(conv(x))), the pool with a square window of `pool` pixels; pool=1 is none. A step that is
    monotonically non-decreasing, such as bias or relu, gives bit-identical results before and after the pool.
    """

    operator: ClassVar[str] = "stem"
