"""NCHW to NHWC on the CPU: pixels in parallel."""

from autotune.families.cpu import over_channels
from autotune.problem import ToChannelsLast

FAMILY = over_channels(ToChannelsLast)
