"""Average pooling of the image's pixels alone on a GPU, channels last."""

from autotune.families.cuda import pool
from autotune.ir import ClippedAvgPool2d

FAMILY = pool.family("cuda_clipped_avg_pool2d", ClippedAvgPool2d, maximum=False, clipped=True)
