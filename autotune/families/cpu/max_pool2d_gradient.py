"""Input gradient of max pooling on the CPU: images and blocks of channels in parallel."""

from autotune.families.cpu.common import over_channels
from autotune.ir import MaxPool2dGradient

FAMILY = over_channels(MaxPool2dGradient)
