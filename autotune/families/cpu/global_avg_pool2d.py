"""Mean of each image on the CPU: images and blocks of channels in parallel."""

from autotune.families.cpu.common import WITH_BYTES, over_channels
from autotune.ir import GlobalAvgPool2d

FAMILY = over_channels(GlobalAvgPool2d, dtypes=WITH_BYTES)
