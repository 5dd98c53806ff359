"""Gradient of max pooling from the places of largest values on the CPU: images and blocks of channels in parallel."""

from autotune.families.cpu.common import over_channels
from autotune.ir import MaxPool2dPlacesGradient

FAMILY = over_channels(MaxPool2dPlacesGradient)
