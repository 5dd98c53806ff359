"""Direct convolution on the CPU with a register tile of pixels x output channels."""

from autotune.families.base import SHARED_LIBRARY, Family, Parameter
from autotune.families.cpu import THREADS
from autotune.problem import Conv2d

FAMILY = Family(
    name="cpu_conv2d",
    operator=Conv2d,
    kind=SHARED_LIBRARY,
    template="cpu/conv2d.cpp.j2",
    architectures=("cpu",),
    parameters=(
        Parameter("block_k", (8, 16, 32, 48, 64), ""),
        Parameter("block_pixels", (1, 2, 4, 6, 8, 12, 14, 16, 28), ""),
        Parameter("unroll_c", (1, 2, 4), ""),
    ),
    weight_layouts=lambda config: {"weight": f"k{config['block_k']}"},
    launch_parameters=(THREADS,),
    cost=lambda problem, config, arch: 0.0,
)
