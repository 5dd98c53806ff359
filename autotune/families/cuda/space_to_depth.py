"""Space-to-depth on a GPU: NCHW patches to NHWC channels."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core import Architecture
from autotune.families.base import CHANNELS_LAST, Config, Launch, Parameter, Rules, Value, require
from autotune.families.cuda.common import CudaFamily
from autotune.ir import DTYPES
from autotune.ir.operators import SpaceToDepth

_BLOCKS = (2, 4, 8)
_VECTOR = 8  # pixels of a row that a thread reads at once


class CudaSpaceToDepth(CudaFamily[SpaceToDepth]):
    """NCHW patches to NHWC channels, through shared memory."""

    name = "cuda_space_to_depth"
    operator = SpaceToDepth
    template = "cuda/space_to_depth.cu.j2"
    parameters = (
        Parameter("block", _BLOCKS, "side of a patch in pixels"),
        Parameter("strips", (1, 2, 4, 8), "rows of patches a thread block"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    )
    launch_parameters = (CHANNELS_LAST,)

    def unsupported(self, problem: SpaceToDepth) -> Rules:
        yield require(not problem.epilogue.steps, "the epilogue must be empty")
        yield require(problem.block in _BLOCKS, f"block must be one of {_BLOCKS}")
        yield require(problem.w % _VECTOR == 0, f"w must be a multiple of {_VECTOR}")

    def decided(self, problem: SpaceToDepth) -> Mapping[str, Value]:
        return {"block": problem.block}

    def unfit(self, problem: SpaceToDepth, config: Config, arch: Architecture) -> Rules:
        yield from super().unfit(problem, config, arch)
        strip_bytes = problem.block * problem.w * problem.c * DTYPES[problem.dtype].itemsize
        shared = int(config["strips"]) * strip_bytes
        yield require(
            shared <= arch.block_shared,
            f"strips must fit {arch.block_shared} bytes of shared memory; they take {shared}",
        )

    def launches(self, problem: SpaceToDepth, config: Config, arch: Architecture) -> list[Launch]:
        return [{CHANNELS_LAST.name: 0}]

    def cost(self, problem: SpaceToDepth, config: Config, arch: Architecture) -> float:
        """Rank by the distance from one access a thread, and from at least two thread blocks for each SM."""
        strips, threads = int(config["strips"]), int(config["threads"])
        accesses = strips * problem.block * problem.w * problem.c / _VECTOR / threads
        blocks = problem.n * problem.h / problem.block / strips
        return max(accesses, 1 / accesses) + max(0.0, 2 * arch.processors / blocks - 1)


FAMILIES = (CudaSpaceToDepth(),)
