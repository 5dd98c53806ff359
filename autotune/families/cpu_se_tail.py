"""Squeeze-and-excitation on the CPU: images in parallel, each in one go while it lies in cache."""

from autotune.families.base import SHARED_LIBRARY, Family
from autotune.families.cpu import BLOCK_C, THREADS, channel_steps, threads
from autotune.problem import SeTail

FAMILY = Family(
    name="cpu_se_tail",
    operator=SeTail,
    kind=SHARED_LIBRARY,
    template="cpu/se_tail.cpp.j2",
    architectures=("cpu",),
    parameters=(BLOCK_C,),
    launch_parameters=(THREADS,),
    launches=threads,
    cost=channel_steps,
)
