"""A network's first layer and the residual block behind it in one kernel, by mma.sync; fp16 and bf16 with float32 sums.

It is cuda_se_block with another beginning: a warp multiplies the image's patches, from registers, by the stem's
weights, and writes what comes of it to where the first convolution reads. See templates/cuda/conv2d_stem.cuh.
"""

from autotune.families.cuda.se_resnet9 import se_block
from autotune.families.se_resnet9.with_stem import with_stem

FAMILY = with_stem(se_block.FAMILY, "cuda_stem_se_block")
