"""A network's first convolution with its max pool, from NCHW to NHWC, on tensor cores: templates/cuda/stem.cuh."""

from __future__ import annotations

from autotune.families.base import Parameter
from autotune.families.cuda import few_channels
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import FirstLayers, Stem

POOL = Parameter("pool", (0, 1), "1: the 3x3 max pool with stride 2 behind the convolution")


def why_unsupported(problem: FirstLayers) -> str | None:
    """Return why no kernel solves a problem; None if one does."""

    def rules() -> Rules:
        yield require(
            (problem.pool, problem.pool_stride, problem.pool_pad) in ((1, 1, 0), (3, 2, 1)),
            "the pool must be 3x3 with stride 2 and padding 1, or absent",
        )
        yield from few_channels.window_rules(problem, (2,))
        yield require(problem.w % 2 == 0, "w must be a multiple of 2")

    return first_unmet(rules())


def decided(problem: FirstLayers) -> dict[str, int]:
    """Return the parameters that a problem decides, with their values."""
    access = few_channels.widest_access(problem.w)
    return {"filter": problem.r, "channels": problem.c, "pool": int(problem.pool > 1), "access": access}


FAMILY = few_channels.family(
    "cuda_stem",
    Stem,
    own_parameters=(POOL,),
    why_unsupported=why_unsupported,
    decided=decided,
)
