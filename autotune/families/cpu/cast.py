"""Another dtype on the CPU: the kernel of a lone epilogue, which stores another type."""

from autotune.families.base import SHARED_LIBRARY, Family
from autotune.families.cast_rules import RESULT, why_illegal, why_unfit
from autotune.families.cpu.common import BLOCK_C, THREADS, WITH_BYTES, channel_steps, threads
from autotune.ir import Cast

FAMILY = Family[Cast](
    name="cpu_cast",
    operator=Cast,
    kind=SHARED_LIBRARY,
    template="cpu/elementwise.cpp.j2",
    architectures=("cpu",),
    dtypes=WITH_BYTES,
    parameters=(RESULT, BLOCK_C),
    why_illegal=why_illegal,
    why_unfit=why_unfit,
    launch_parameters=(THREADS,),
    launches=threads,
    cost=channel_steps,
)
