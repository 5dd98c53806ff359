"""Average pooling on the CPU: output pixels in parallel, blocks of channels in registers."""

from autotune.families.cpu.common import WITH_BYTES, over_channels
from autotune.ir import AvgPool2d

FAMILY = over_channels(AvgPool2d, "cpu/pool2d.cpp.j2", dtypes=WITH_BYTES, maximum=False, window="counted")
