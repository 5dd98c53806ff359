"""A network's first convolution with its max pool, from NCHW to NHWC, on tensor cores: templates/cuda/stem.cuh."""

from __future__ import annotations

from autotune.families.base import Parameter
from autotune.families.cuda import few_channels
from autotune.ir import Problem, Stem


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, Stem)
    if (problem.pool, problem.pool_stride, problem.pool_pad) not in ((1, 1, 0), (3, 2, 1)):
        return "no pool, or 3x3 with stride 2 and padding 1"
    return few_channels.unserved(problem, (2,)) or ("w must be a multiple of 2" if problem.w % 2 else None)


def _asked(problem: Problem) -> dict[str, int]:
    assert isinstance(problem, Stem)
    access = few_channels.widest(problem.w)
    return {"filter": problem.r, "channels": problem.c, "pool": int(problem.pool > 1), "access": access}


FAMILY = few_channels.family(
    "cuda_stem",
    Stem,
    (Parameter("pool", (0, 1), "1: the 3x3 max pool with stride 2 behind the convolution"),),
    _supports,
    _asked,
)
