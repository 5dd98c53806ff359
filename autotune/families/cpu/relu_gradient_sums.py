"""The input gradient of a ReLU with sums over each image on the CPU: images and blocks of channels in parallel."""

from autotune.families.cpu.common import over_channels
from autotune.ir import ReluGradientSums

FAMILY = over_channels(ReluGradientSums)
