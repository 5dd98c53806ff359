"""NCHW to NHWC on the CPU: pixels in parallel."""

from autotune.families.cpu.common import over_channels
from autotune.ir.problem import ToChannelsLast

FAMILY = over_channels(ToChannelsLast)
