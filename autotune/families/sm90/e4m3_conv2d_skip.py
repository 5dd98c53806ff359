"""sm90_conv2d_skip for e4m3: the same kernels with float32 sums.

A tensor core rounds sums of e4m3 products to about 14 bits (ir/byte_sums.py). No kernel promotes its sums: a thread has
those of two convolutions, and no registers for more. It is a family of its own because `promote` would be a parameter
of all kernels of sm90_conv2d_skip that databases hold.
"""

from __future__ import annotations

from autotune.families.base import Parameter, replace
from autotune.families.sm90.conv2d_skip import FAMILY as CONV2D_SKIP
from autotune.families.sm90.e4m3_conv2d import exact_enough

FAMILY = replace(
    CONV2D_SKIP,
    name="sm90_e4m3_conv2d_skip",
    dtypes=("e4m3",),
    parameters=(*CONV2D_SKIP.parameters, Parameter("promote", (0,), "0: float32 registers never take over the sums")),
    why_unfit=exact_enough(CONV2D_SKIP),
)
