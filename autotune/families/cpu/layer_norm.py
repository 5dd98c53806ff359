"""Layer normalization on the CPU: pixels in parallel, blocks of channels in registers."""

from autotune.families.cpu.common import over_channels
from autotune.ir import LayerNorm

FAMILY = over_channels(LayerNorm)
