"""Average pooling on the CPU: output pixels in parallel, blocks of channels in registers."""

from autotune.families.base import SHARED_LIBRARY, Family
from autotune.families.cpu import BLOCK_C, THREADS, channel_steps, threads
from autotune.problem import AvgPool2d

FAMILY = Family(
    name="cpu_avg_pool2d",
    operator=AvgPool2d,
    kind=SHARED_LIBRARY,
    template="cpu/pool2d.cpp.j2",
    architectures=("cpu",),
    dtypes=("f32", "s8"),
    parameters=(BLOCK_C,),
    launch_parameters=(THREADS,),
    launches=threads,
    cost=channel_steps,
    context=lambda config, arch, dtype: {**config, "maximum": False},
)
