"""Space-to-depth on a GPU: NCHW patches to NHWC channels, through shared memory."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families import cuda_shared
from autotune.families.base import CHANNELS_LAST, DEVICE_IMAGE, Config, Family, Parameter
from autotune.ir import DTYPES, Problem, SpaceToDepth

_BLOCKS = (2, 4, 8)
_VECTOR = 8  # elements of an access: 16 bytes


def _supports(problem: Problem) -> str | None:
    assert isinstance(problem, SpaceToDepth)
    if problem.epilogue.steps:
        return "steps behind it"
    if problem.block not in _BLOCKS:
        return f"blocks of {_BLOCKS}"
    return "w must be a multiple of 8" if problem.w % _VECTOR else None


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, SpaceToDepth)
    if config["block"] != problem.block:
        return f"it moves blocks of {config['block']}"
    strip_bytes = problem.block * problem.w * problem.c * DTYPES[problem.dtype].itemsize
    return "shared memory" if int(config["strips"]) * strip_bytes > arch.block_shared else None


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Distance from one access a thread, and from at least two thread blocks for each processor."""
    assert isinstance(problem, SpaceToDepth)
    strips, threads = int(config["strips"]), int(config["threads"])
    accesses = strips * problem.block * problem.w * problem.c / _VECTOR / threads
    blocks = problem.n * problem.h / problem.block / strips
    return max(accesses, 1 / accesses) + max(0.0, 2 * arch.processors / blocks - 1)


FAMILY = Family(
    name="cuda_space_to_depth",
    operator=SpaceToDepth,
    kind=DEVICE_IMAGE,
    template="cuda/space_to_depth.cu.j2",
    architectures=cuda_shared.ARCHITECTURES,
    parameters=(
        Parameter("block", _BLOCKS, "side of a patch in pixels"),
        Parameter("strips", (1, 2, 4, 8), "rows of patches a thread block"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    launch_parameters=(CHANNELS_LAST,),
    launches=lambda *_: [{CHANNELS_LAST.name: 0}],
    supports=_supports,
    fits=_fits,
    cost=_cost,
    compile_seconds=(0.9, 0.1),
)
