"""NCHW to NHWC on the CPU: pixels in parallel."""

from autotune.families.cpu.common import over_channels
from autotune.ir import ToChannelsLast

FAMILY = over_channels(ToChannelsLast)
