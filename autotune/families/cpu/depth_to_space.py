"""Depth-to-space on the CPU: rows in parallel, blocks of channels in registers."""

from autotune.families.cpu.common import over_channels
from autotune.ir import DepthToSpace

FAMILY = over_channels(DepthToSpace)
