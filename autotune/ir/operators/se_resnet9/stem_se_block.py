"""A network's first layer and the residual block after it."""

from __future__ import annotations

from typing import ClassVar

from autotune.ir.operators.se_resnet9.stem_block import StemBlock
from autotune.ir.problem.registry import register


@register
class StemSeBlock(StemBlock):
    """A network's first layer and the residual block after it, whose identity is the layer's result.

    x (n, c, h, w) in torch's order is convolved as by patch_conv2d, with weight (k, c, block, block). In the epilogue,
    `keep` stands where the value so far is kept as the identity, the first `conv` where it is convolved as by se_block
    with weight1 (k, k, 3, 3), the second with weight2 (k, k, 3, 3), `gate` where it is scaled as by conv2d_se, and
    `add_kept` where the identity is added: "relu,keep,conv,bias,relu,conv,bias,gate,add_kept,relu".
    """

    operator: ClassVar[str] = "stem_se_block"

    @property
    def short_name(self) -> str:
        """Return the channels and the image."""
        return f"stem+block {self._size_name}"
