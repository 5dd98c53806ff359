"""Convolution with squeeze-and-excitation that begins with a filter of the convolution's own input."""

from __future__ import annotations

from typing import ClassVar

from autotune.ir.epilogue import Epilogue
from autotune.ir.operators.folded_se import FoldedSe
from autotune.ir.problem.registry import register

_GATE = Epilogue(("gate",))


@register
class Conv2dFoldedSe(FoldedSe):
    """Convolution with squeeze-and-excitation that begins with a filter of the convolution's own input.

    The step `gate` scales the value so far by sigmoid(w2 relu(mean(conv(x, w1)) + b1) + b2), the mean over the output's
    pixels, w1 (hidden, c, r, s), w2 (k, hidden). If all steps between a convolution and its gate are linear, as in most
    networks, it computes the same as conv2d_se, with w1 as `squeeze_filter` of ir/constant_expr.py makes it. A tile
    that computes the hidden values beside its channels needs no data of other tiles. A residual block ends with
    "bias,gate,add,relu".
    """

    operator: ClassVar[str] = "conv2d_folded_se"
    anchors: ClassVar[tuple[str, ...]] = ("gate",)
    epilogue: Epilogue = _GATE
