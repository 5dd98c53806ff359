"""Space-to-depth on the CPU: NCHW patches to NHWC channels, rows in parallel."""

from autotune.families.base import CHANNELS_LAST, SHARED_LIBRARY, Family
from autotune.families.cpu.common import THREADS, threads
from autotune.families.rules import require
from autotune.ir import SpaceToDepth

FAMILY = Family[SpaceToDepth](
    name="cpu_space_to_depth",
    operator=SpaceToDepth,
    kind=SHARED_LIBRARY,
    template="cpu/space_to_depth.cpp.j2",
    architectures=("cpu",),
    parameters=(),
    launch_parameters=(THREADS, CHANNELS_LAST),
    launches=lambda problem, config, arch: [
        {**launch, CHANNELS_LAST.name: 0} for launch in threads(problem, config, arch)
    ],
    why_unsupported=lambda problem: require(not problem.epilogue.steps, "the epilogue must be empty"),
    cost=lambda problem, config, arch: 0.0,
)
