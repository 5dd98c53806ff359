"""The mean of each image on the CPU: images and blocks of channels in parallel."""

from autotune.families.base import SHARED_LIBRARY, Family
from autotune.families.cpu import BLOCK_C, THREADS, channel_steps, threads
from autotune.problem import GlobalAvgPool2d

FAMILY = Family(
    name="cpu_global_avg_pool2d",
    operator=GlobalAvgPool2d,
    kind=SHARED_LIBRARY,
    template="cpu/global_avg_pool2d.cpp.j2",
    architectures=("cpu",),
    dtypes=("f32", "s8"),
    parameters=(BLOCK_C,),
    launch_parameters=(THREADS,),
    launches=threads,
    cost=channel_steps,
)
