"""Space-to-depth on a GPU: NCHW patches to NHWC channels."""

from autotune.families.base import DEVICE_IMAGE, Family, Parameter
from autotune.problem import Problem, SpaceToDepth

_BLOCKS = (2, 4, 8)


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, SpaceToDepth)
    return None if problem.block in _BLOCKS else f"blocks of {_BLOCKS}"


FAMILY = Family(
    name="cuda_space_to_depth",
    operator=SpaceToDepth,
    kind=DEVICE_IMAGE,
    template="cuda/space_to_depth.cu.j2",
    architectures=("sm70", "sm75", "sm80", "sm86", "sm89", "sm90"),
    parameters=(
        Parameter("block", _BLOCKS, "side of a patch in pixels"),
        Parameter("threads", (128, 256, 512), "threads a block"),
    ),
    supports=_supports,
    launches=lambda problem, config, arch: [{}] if config["block"] == problem.block else [],
    cost=lambda problem, config, arch: abs(int(config["threads"]) - 256),
)
