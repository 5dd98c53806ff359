"""sm90_image_conv2d for e4m3: the same kernels of plain convolutions with float32 sums.

Parameter `promote` bounds the error of the sums, as in e4m3_conv2d.py. It is a family of its own because a parameter
of sm90_image_conv2d would be one of all kernels that databases hold.
"""

from __future__ import annotations

from autotune.families.base import Parameter, replace
from autotune.families.sm90.e4m3_conv2d import PROMOTE, exact_enough, promoted_label
from autotune.families.sm90.image_conv2d import FAMILY as IMAGE_CONV2D
from autotune.ir import Conv2d

# The bound of the sums' error reads it. It takes a sum for one of all steps, although each of the two warpgroups adds
# half of them, one step more or less.
_TILE_K = Parameter("tile_k", (128,), "input channels a step")


FAMILY = replace(
    IMAGE_CONV2D,
    name="sm90_e4m3_image_conv2d",
    operator=Conv2d,
    dtypes=("e4m3",),
    parameters=(*IMAGE_CONV2D.parameters, _TILE_K, PROMOTE),
    why_unfit=exact_enough(IMAGE_CONV2D),
    label=promoted_label(IMAGE_CONV2D),
)
