"""A lone epilogue on the CPU: pixels in parallel, blocks of channels in registers."""

from autotune.families.cpu.common import WITH_BYTES, over_channels
from autotune.ir import Elementwise

FAMILY = over_channels(Elementwise, dtypes=WITH_BYTES)
