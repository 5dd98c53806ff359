"""Depth-to-space on a GPU, channels last. A thread makes neighbouring elements of an output row."""

from __future__ import annotations

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Parameter
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda.rules import require_access, require_whole_vectors
from autotune.families.rules import require
from autotune.ir import DepthToSpace, Epilogue


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    vector = int(config["vector"])
    return require_access(vector, dtype) or require(
        vector > 1 or not config["flat"], "one element belongs to one pixel: flat must be 0"
    )


def _why_unfit(problem: DepthToSpace, config: Config, arch: Architecture) -> str | None:
    """Require whole vectors, and one pixel a thread where that is possible."""
    vector = int(config["vector"])
    if not config["flat"]:
        return require_whole_vectors(problem.c, vector)
    row = problem.output_shape[2] * problem.c
    return require(problem.c % vector, "a thread's elements can belong to one pixel") or require(
        row % vector == 0, f"an output row must be a multiple of the vector: {row} is not one of {vector}"
    )


def _cost(problem: DepthToSpace, config: Config, arch: Architecture) -> float:
    """Rank by accesses an element: one store a thread, and loads of whole vectors or of single elements."""
    vector = int(config["vector"])
    loads = vector if config["flat"] else 1
    return (2 + loads) / vector + int(config["threads"]) / 65536


FAMILY = Family[DepthToSpace](
    name="cuda_depth_to_space",
    operator=DepthToSpace,
    kind=DEVICE_IMAGE,
    template="cuda/depth_to_space.cu.j2",
    architectures=cuda_architectures(),
    parameters=(
        Parameter("vector", (1, 2, 4, 8), "elements a thread"),
        Parameter("flat", (0, 1), "1: they may belong to several pixels, for odd numbers of channels; 0: to one"),
        Parameter("threads", (128, 256), "threads a block"),
    ),
    why_illegal=_why_illegal,
    why_unfit=_why_unfit,
    cost=_cost,
    compile_seconds=(0.9, 0.1),
)
