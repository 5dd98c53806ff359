"""Average pooling to a given size on the CPU: output pixels in parallel, blocks of channels in registers."""

from autotune.families.cpu.common import WITH_BYTES, over_channels
from autotune.ir import AdaptiveAvgPool2d

FAMILY = over_channels(AdaptiveAvgPool2d, "cpu/pool2d.cpp.j2", dtypes=WITH_BYTES, maximum=False, window="adaptive")
