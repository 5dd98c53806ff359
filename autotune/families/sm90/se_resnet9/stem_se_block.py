"""A network's first layer and the residual block behind it in one kernel for Hopper; fp16 and bf16.

It is the kernel of sm90_se_block with another beginning: see templates/sm90/se_resnet9/stem/patch_stem.cuh. The rules
of that family hold here for the block behind the stem.
"""

from autotune.families.se_resnet9.with_stem import with_stem
from autotune.families.sm90.se_resnet9 import se_block

FAMILY = with_stem(se_block.FAMILY, "sm90_stem_se_block")
