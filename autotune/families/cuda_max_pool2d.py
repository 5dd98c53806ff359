"""Max pooling on a GPU, channels last."""

from autotune.families import cuda_pool
from autotune.problem import MaxPool2d

FAMILY = cuda_pool.family("cuda_max_pool2d", MaxPool2d, maximum=True)
