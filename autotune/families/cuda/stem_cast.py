"""A network's first convolution with its max pool and a cast, for layers in 8 bits: the kernel of `cuda_stem`."""

from __future__ import annotations

from autotune.families.base import Parameter
from autotune.families.cuda import few_channels, stem
from autotune.ir import BYTE_FORMATS, StemCast


def _decided(problem: StemCast) -> dict[str, int | str]:
    return {**stem.decided(problem), "result": problem.result}


FAMILY = few_channels.family(
    "cuda_stem_cast",
    StemCast,
    own_parameters=(stem.POOL, Parameter("result", tuple(BYTE_FORMATS), "dtype of the output")),
    why_unsupported=stem.why_unsupported,
    decided=_decided,
)
