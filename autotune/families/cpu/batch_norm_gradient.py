"""The input gradient of a batch normalization on the CPU: pixels in parallel."""

from autotune.families.cpu.common import over_channels
from autotune.ir import BatchNormGradient

FAMILY = over_channels(BatchNormGradient)
