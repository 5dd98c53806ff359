"""The mean of each image on a GPU, channels last."""

from __future__ import annotations

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Parameter, Rules, require
from autotune.families.cuda.common import WITH_BYTES, VectorFamily
from autotune.ir import Epilogue
from autotune.ir.operators import GlobalAvgPool2d


class CudaGlobalAvgPool2d(VectorFamily[GlobalAvgPool2d]):
    """The mean of each image: the threads of a block share the pixels of some channels."""

    name = "cuda_global_avg_pool2d"
    operator = GlobalAvgPool2d
    template = "cuda/global_avg_pool2d.cu.j2"
    dtypes = WITH_BYTES
    parameters = (
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("groups", (4, 8, 16, 32), "threads a block side by side, along the channels"),
        Parameter("lanes", (1, 2, 4, 8, 16, 32), "threads a block that share the pixels of a channel"),
    )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        threads = int(config["groups"]) * int(config["lanes"])
        yield from super().illegal(config, arch, dtype, epilogue)
        yield require(32 <= threads <= 512, f"a block must have 32 to 512 threads; groups times lanes is {threads}")

    def cost(self, problem: GlobalAvgPool2d, config: Config, arch: Architecture) -> float:
        """Rank by dependent reads for each wave of blocks: those of a thread, and those that add up threads' sums."""
        vector, groups, lanes = (int(config[name]) for name in ("vector", "groups", "lanes"))
        blocks = problem.n * ceil_div(problem.c, vector * groups)
        waves = ceil_div(blocks * groups * lanes, arch.processors * arch.sm_threads)
        return waves * (ceil_div(problem.h * problem.w, lanes) / 4 + lanes / 16 + 1) * float((8 / vector) ** 0.5)


FAMILIES = (CudaGlobalAvgPool2d(),)
