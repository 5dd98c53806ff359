"""NCHW to NHWC on the CPU: pixels in parallel."""

from autotune.families.base import SHARED_LIBRARY, Family
from autotune.families.cpu import BLOCK_C, THREADS, channel_steps, threads
from autotune.problem import ToChannelsLast

FAMILY = Family(
    name="cpu_to_channels_last",
    operator=ToChannelsLast,
    kind=SHARED_LIBRARY,
    template="cpu/to_channels_last.cpp.j2",
    architectures=("cpu",),
    parameters=(BLOCK_C,),
    launch_parameters=(THREADS,),
    launches=threads,
    cost=channel_steps,
)
