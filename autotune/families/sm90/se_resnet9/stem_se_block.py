"""sm90_se_block with a network's first layer before it: templates/sm90/se_resnet9/stem/patch_stem.cuh."""

from __future__ import annotations

from autotune.families.base import CHANNELS_LAST
from autotune.families.se_resnet9.common import IMAGE, StemFamily
from autotune.families.sm90.se_resnet9.se_block import SeBlockFamily
from autotune.ir import StemSeBlock


class Sm90StemSeBlock(StemFamily, SeBlockFamily[StemSeBlock]):
    """A network's first layer and the residual block behind it in one kernel for Hopper; fp16 and bf16."""

    name = "sm90_stem_se_block"
    parameters = (*SeBlockFamily.parameters, IMAGE)
    launch_parameters = (*SeBlockFamily.launch_parameters, CHANNELS_LAST)


FAMILIES = (Sm90StemSeBlock(),)
