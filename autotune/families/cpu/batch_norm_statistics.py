"""Mean and variance of a batch normalization in training on the CPU: chunks of pixels in parallel."""

from autotune.families.cpu.common import over_channels
from autotune.ir import BatchNormStatistics

FAMILY = over_channels(BatchNormStatistics)
