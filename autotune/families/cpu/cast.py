"""Another dtype on the CPU: the lone epilogue's kernel, with another type stored."""

from autotune.families.base import SHARED_LIBRARY, Family
from autotune.families.cast_rules import RESULT, fits, legal
from autotune.families.cpu.common import BLOCK_C, THREADS, channel_steps, threads
from autotune.ir import Cast

FAMILY = Family(
    name="cpu_cast",
    operator=Cast,
    kind=SHARED_LIBRARY,
    template="cpu/elementwise.cpp.j2",
    architectures=("cpu",),
    dtypes=("f32", "s8"),
    parameters=(RESULT, BLOCK_C),
    legal=legal,
    fits=fits,
    launch_parameters=(THREADS,),
    launches=threads,
    cost=channel_steps,
)
