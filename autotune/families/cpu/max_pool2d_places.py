"""Max pooling in training on the CPU: output pixels in parallel, blocks of channels in registers."""

from autotune.families.cpu.common import over_channels
from autotune.ir import MaxPool2dPlaces

FAMILY = over_channels(MaxPool2dPlaces)
