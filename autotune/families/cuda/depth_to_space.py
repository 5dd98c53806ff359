"""Depth-to-space on a GPU, channels last."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Config, Parameter, Rules, require
from autotune.families.cuda.common import CudaFamily
from autotune.families.cuda.rules import require_access, require_whole_vectors
from autotune.ir import Epilogue
from autotune.ir.operators import DepthToSpace


class CudaDepthToSpace(CudaFamily[DepthToSpace]):
    """Depth-to-space: a thread makes neighbouring elements of an output row."""

    name = "cuda_depth_to_space"
    operator = DepthToSpace
    template = "cuda/depth_to_space.cu.j2"
    parameters = (
        Parameter("vector", (1, 2, 4, 8), "elements a thread"),
        Parameter("flat", (0, 1), "1: they may belong to several pixels, for odd numbers of channels; 0: to one"),
        Parameter("threads", (128, 256), "threads a block"),
    )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        vector = int(config["vector"])
        yield require_access(vector, dtype)
        yield require(vector > 1 or not config["flat"], "one element belongs to one pixel: flat must be 0")

    def unfit(self, problem: DepthToSpace, config: Config, arch: Architecture) -> Rules:
        """Yield that vectors are whole, and that a thread has one pixel where that is possible."""
        vector, row = int(config["vector"]), problem.output_shape[2] * problem.c
        if config["flat"]:
            yield require(problem.c % vector, "a thread's elements can belong to one pixel")
            yield require(
                row % vector == 0, f"an output row must be a multiple of the vector: {row} is not one of {vector}"
            )
        else:
            yield require_whole_vectors(problem.c, vector)

    def cost(self, problem: DepthToSpace, config: Config, arch: Architecture) -> float:
        """Rank by accesses an element: one store a thread, and loads of whole vectors or of single elements."""
        vector = int(config["vector"])
        loads = vector if config["flat"] else 1
        return (2 + loads) / vector + int(config["threads"]) / 65536


FAMILIES = (CudaDepthToSpace(),)
