"""Space-to-depth on the CPU: NCHW patches to NHWC channels, rows in parallel."""

from autotune.families.base import SHARED_LIBRARY, Family, Parameter
from autotune.problem import SpaceToDepth

FAMILY = Family(
    name="cpu_space_to_depth",
    operator=SpaceToDepth,
    kind=SHARED_LIBRARY,
    template="cpu/space_to_depth.cpp.j2",
    architectures=("cpu",),
    parameters=(),
    launch_parameters=(Parameter("threads", (0, 1), "0: torch's number of threads; 1: the caller's alone"),),
    launches=lambda problem, config, arch: [{"threads": 0}, {"threads": 1}],
    cost=lambda problem, config, arch: 0.0,
)
