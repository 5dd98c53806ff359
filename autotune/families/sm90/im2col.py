"""Limits of TMA's im2col mode for tensors of rank 4 (CUDA Driver API, cuTensorMapEncodeIm2col)."""

from __future__ import annotations

from autotune.families.rules import Rules, require
from autotune.ir import Convolution

_MAX_CORNER, _MAX_OFFSET, _MAX_STRIDE = 128, 255, 8


def im2col_rules(conv: Convolution, *strides: int) -> Rules:
    """Yield the requirements for a convolution whose pixels TMA gathers.

    Args:
        conv: The convolution.
        strides: Its strides, and those of another tensor that is gathered for the same output.
    """
    reach = [d * (extent - 1) for d, extent in zip(conv.dilation, (conv.r, conv.s), strict=True)]
    corner = max(*conv.pad, max(reach) - min(conv.pad))
    yield require(
        max(reach) <= _MAX_OFFSET and corner <= _MAX_CORNER,
        f"a filter must reach at most {_MAX_OFFSET} pixels, {_MAX_CORNER} beyond the padding, as TMA's im2col does",
    )
    yield require(max(strides) <= _MAX_STRIDE, f"stride must be at most {_MAX_STRIDE}")
    yield require(conv.n * conv.p * conv.q < 2**31, "the output must have fewer than 2^31 pixels")
