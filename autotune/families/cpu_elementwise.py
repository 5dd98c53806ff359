"""A lone epilogue on the CPU: pixels in parallel, blocks of channels in registers."""

from autotune.families.base import SHARED_LIBRARY, Family
from autotune.families.cpu import BLOCK_C, THREADS, channel_steps, threads
from autotune.problem import Elementwise

FAMILY = Family(
    name="cpu_elementwise",
    operator=Elementwise,
    kind=SHARED_LIBRARY,
    template="cpu/elementwise.cpp.j2",
    architectures=("cpu",),
    dtypes=("f32", "s8"),
    parameters=(BLOCK_C,),
    launch_parameters=(THREADS,),
    launches=threads,
    cost=channel_steps,
)
