"""Direct convolution on the CPU, then the statistics of its result for a batch normalization in training."""

from autotune.families.cpu.conv2d_with_norm import conv2d_with_norm
from autotune.ir import Conv2dStatistics

FAMILY = conv2d_with_norm(Conv2dStatistics)
