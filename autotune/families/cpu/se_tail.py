"""Squeeze-and-excitation on the CPU: images in parallel, each in one go while it lies in cache."""

from autotune.families.cpu.common import over_channels
from autotune.ir import SeTail

FAMILY = over_channels(SeTail)
