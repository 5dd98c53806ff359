"""Squeeze-and-excitation on the CPU: images in parallel, each in one pass while it is in cache."""

from autotune.families.cpu.common import over_channels
from autotune.ir import SeTail

FAMILY = over_channels(SeTail, act="relu", gate="sigmoid")
