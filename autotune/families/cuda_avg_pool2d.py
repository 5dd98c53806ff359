"""Average pooling on a GPU, channels last."""

from autotune.families import cuda_pool
from autotune.problem import AvgPool2d

FAMILY = cuda_pool.family("cuda_avg_pool2d", AvgPool2d, maximum=False)
