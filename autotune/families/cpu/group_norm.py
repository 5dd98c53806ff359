"""Group normalization on the CPU: images and groups in parallel."""

from autotune.families.cpu.common import over_channels
from autotune.ir import GroupNorm

FAMILY = over_channels(GroupNorm)
