"""Max pooling on a GPU, channels last."""

from autotune.families.cuda import pool
from autotune.ir import MaxPool2d

FAMILY = pool.family("cuda_max_pool2d", MaxPool2d, maximum=True)
