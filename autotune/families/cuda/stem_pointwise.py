"""A network's first convolution with its max pool and the 1x1 convolution after it, in the kernel of `cuda_stem`.

See templates/cuda/stem_pointwise.cuh.
"""

from __future__ import annotations

from autotune.core import round_up
from autotune.families.base import Parameter
from autotune.families.cuda import few_channels, stem
from autotune.families.rules import Rules, first_unmet, require
from autotune.ir import StemPointwise

_MAX_HIDDEN = 64  # channels of a block's pooled pixels: all of them, since the second product sums them
_OUTPUTS = (32, 64, 96, 128)


def _why_unsupported(problem: StemPointwise) -> str | None:
    def rules() -> Rules:
        yield stem.why_unsupported(problem)
        yield require(problem.pool > 1, "there must be a pool")
        yield require(problem.k <= _MAX_HIDDEN, f"k must be at most {_MAX_HIDDEN}, the channels of a block")
        yield require(
            problem.outputs % 8 == 0 and problem.outputs <= _OUTPUTS[-1],
            f"outputs must be a multiple of 8, at most {_OUTPUTS[-1]}",
        )

    return first_unmet(rules())


def _decided(problem: StemPointwise) -> dict[str, int]:
    """Return the parameters that a problem decides: both convolutions' channels are those of one block."""
    tile_k = 32 if problem.k <= 32 else 64
    return {**stem.decided(problem), "tile_k": tile_k, "outputs": round_up(problem.outputs, tile_k)}


FAMILY = few_channels.family(
    "cuda_stem_pointwise",
    StemPointwise,
    own_parameters=(
        Parameter("pool", (1,), "the 3x3 max pool with stride 2 behind the convolution"),
        Parameter("outputs", _OUTPUTS, "channels of the 1x1 convolution, rounded up"),
    ),
    why_unsupported=_why_unsupported,
    decided=_decided,
    template="cuda/stem_pointwise.cu.j2",
)
