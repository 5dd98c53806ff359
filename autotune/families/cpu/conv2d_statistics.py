"""Direct convolution on the CPU, then the statistics of its result for a batch normalization in training."""

from dataclasses import replace

from autotune.families.cpu import tiles
from autotune.families.cpu.conv2d import extents
from autotune.ir import Conv2dStatistics

FAMILY = replace(
    tiles.family(
        "cpu_conv2d_statistics",
        Conv2dStatistics,
        header="cpu/conv2d.h",
        pixels="ForwardPixels",
        extents=lambda problem, config: extents(problem.convolution, config),
        layout="k",
    ),
    template="cpu/conv2d_statistics.cpp.j2",
)
