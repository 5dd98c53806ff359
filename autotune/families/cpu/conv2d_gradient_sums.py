"""Gradient by a batch normalization's result on the CPU, as a convolution, then the sums of the norm's gradient."""

from dataclasses import replace

from autotune.families.cpu import tiles
from autotune.families.cpu.conv2d import extents
from autotune.ir import Conv2dGradientSums

FAMILY = replace(
    tiles.family(
        "cpu_conv2d_gradient_sums",
        Conv2dGradientSums,
        header="cpu/conv2d.h",
        pixels="ForwardPixels",
        extents=lambda problem, config: extents(problem.convolution, config),
        layout="k",
    ),
    template="cpu/conv2d_gradient_sums.cpp.j2",
)
