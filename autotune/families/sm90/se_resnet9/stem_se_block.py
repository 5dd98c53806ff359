"""A network's first layer and the residual block behind it in one kernel for Hopper; fp16 and bf16.

It is the kernel of sm90_se_block with another beginning: templates/sm90/se_resnet9/stem/patch_stem.cuh says how that
works. So what is
said there of the block holds here of the block behind the stem.
"""

from autotune.families.sm90.se_resnet9 import se_block
from autotune.families.stem_block import with_stem

FAMILY = with_stem(se_block.FAMILY, "sm90_stem_se_block")
