"""Softmax over channels on the CPU: pixels in parallel."""

from autotune.families.cpu.common import over_channels
from autotune.ir import Softmax

FAMILY = over_channels(Softmax)
