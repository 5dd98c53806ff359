"""Families whose threads make neighbouring elements of an output row: parameters, rules and cost."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Config, Parameter
from autotune.families.cuda.rules import require_access, require_whole_vectors
from autotune.families.rules import require
from autotune.ir import DepthToSpace, Epilogue, Upsample

PARAMETERS = (
    Parameter("vector", (1, 2, 4, 8), "elements a thread"),
    Parameter("flat", (0, 1), "1: they may belong to several pixels, for odd numbers of channels; 0: to one"),
    Parameter("threads", (128, 256), "threads a block"),
)


def why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    """Return why a kernel of a config cannot be compiled, or None."""
    vector = int(config["vector"])
    return require_access(vector, dtype) or require(
        vector > 1 or not config["flat"], "one element belongs to one pixel: flat must be 0"
    )


def require_fit(problem: Upsample | DepthToSpace, config: Config, arch: Architecture) -> str | None:
    """Require whole vectors, and one pixel a thread where that is possible."""
    vector = int(config["vector"])
    if not config["flat"]:
        return require_whole_vectors(problem.c, vector)
    row = problem.output_shape[2] * problem.c
    return require(problem.c % vector, "a thread's elements can belong to one pixel") or require(
        row % vector == 0, f"an output row must be a multiple of the vector: {row} is not one of {vector}"
    )


def cost(problem: Upsample | DepthToSpace, config: Config, arch: Architecture) -> float:
    """Rank by accesses an element: one store a thread, and loads of whole vectors or of single elements."""
    vector = int(config["vector"])
    loads = vector if config["flat"] else 1
    return (2 + loads) / vector + int(config["threads"]) / 65536
