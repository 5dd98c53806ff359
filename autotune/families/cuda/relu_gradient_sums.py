"""The input gradient of a ReLU with sums over each image on a GPU, channels last."""

from __future__ import annotations

from autotune.core import Architecture, ceil_div
from autotune.families.base import Config, Parameter, Rules, require
from autotune.families.cuda.common import VectorFamily
from autotune.ir import Epilogue
from autotune.ir.operators import ReluGradientSums

_SHARED_BYTES = 48 * 1024
_ROWS = 4


class CudaReluGradientSums(VectorFamily[ReluGradientSums]):
    """The input gradient of a ReLU with sums over each image: a block's threads share the pixels of some channels."""

    name = "cuda_relu_gradient_sums"
    operator = ReluGradientSums
    template = "cuda/relu_gradient_sums.cu.j2"
    parameters = (
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("groups", (4, 8, 16, 32, 64), "threads a block side by side, along the channels"),
        Parameter("lanes", (1, 2, 4, 8, 16, 32), "threads a block that share the pixels of a channel"),
        Parameter("items", (1, 2, 4), "pixels that a thread reads at a time"),
    )
    compile_seconds = (0.9, 0.4)

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        threads = int(config["groups"]) * int(config["lanes"])
        shared = threads * int(config["vector"]) * _ROWS * 4
        yield from super().illegal(config, arch, dtype, epilogue)
        yield require(32 <= threads <= 512, f"a block must have 32 to 512 threads; groups times lanes is {threads}")
        yield require(
            shared <= _SHARED_BYTES, f"the threads' sums take {shared} bytes of shared memory, more than 48 KB"
        )

    def cost(self, problem: ReluGradientSums, config: Config, arch: Architecture) -> float:
        """Rank by accesses of a thread one after the other, and by threads that have no pixel or no channel."""
        vector, groups, lanes, items = (int(config[name]) for name in ("vector", "groups", "lanes", "items"))
        pixels = problem.h * problem.w
        blocks = problem.n * ceil_div(problem.c, vector * groups)
        waves = ceil_div(blocks * groups * lanes, arch.processors * arch.sm_threads)
        rounds = ceil_div(pixels, lanes * items)
        used = problem.c / (ceil_div(problem.c, vector * groups) * vector * groups)
        return waves * (rounds * (1 + items / 4) + lanes / 16 + 1) * float((8 / vector) ** 0.5) / used


FAMILIES = (CudaReluGradientSums(),)
