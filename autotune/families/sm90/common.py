"""The base class of the families for Hopper, and the rates and limits of that GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from autotune.core import Architecture
from autotune.families.base import DEVICE_IMAGE, Config, Family, Rules, require
from autotune.ir import MAP_ELEMENTS, Problem
from autotune.ir.operators import Convolution

P = TypeVar("P", bound=Problem)

LOADED_BYTES_A_CYCLE = 40
"""Bytes that an SM loads a cycle when all SMs load: an estimate for an H200, for kernels of one network block."""
MAX_CLUSTER = 8
"""Blocks of a cluster: the portable limit of the CUDA C++ Programming Guide."""

_MAX_CORNER, _MAX_OFFSET, _MAX_STRIDE = 128, 255, 8
"""Limits of TMA's im2col mode for tensors of rank 4 (CUDA Driver API, cuTensorMapEncodeIm2col)."""


class HopperFamily(Family[P]):
    """A family of device images for sm_90."""

    kind = DEVICE_IMAGE
    architectures = ("sm90",)
    dtypes: tuple[str, ...] = ("f16", "bf16")
    compile_seconds = (1.0, 1.2)

    def context(self, config: Config, arch: Architecture, dtype: str) -> Mapping[str, object]:
        return {**config, "type": dtype, "map_element": MAP_ELEMENTS[dtype]}


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
