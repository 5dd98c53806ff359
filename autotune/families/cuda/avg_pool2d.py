"""Average pooling on a GPU, channels last."""

from autotune.families.cuda import pool
from autotune.ir import AvgPool2d

FAMILY = pool.family("cuda_avg_pool2d", AvgPool2d, maximum=False)
