"""The sums of a batch normalization's gradient on the CPU: chunks of pixels in parallel."""

from autotune.families.cpu.common import over_channels
from autotune.ir import BatchNormGradientSums

FAMILY = over_channels(BatchNormGradientSums)
