"""The gradient of a batch normalization by its input on the CPU: pixels in parallel."""

from autotune.families.cpu.common import over_channels
from autotune.ir import BatchNormGradient

FAMILY = over_channels(BatchNormGradient)
