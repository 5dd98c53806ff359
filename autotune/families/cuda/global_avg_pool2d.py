"""The mean of each image on a GPU, channels last."""

from __future__ import annotations

from autotune.core import Architecture, ceil_div, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Parameter
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda.rules import require_access, require_whole_vectors
from autotune.families.rules import require
from autotune.ir import BYTE_FORMATS, Epilogue, GlobalAvgPool2d


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    threads = int(config["groups"]) * int(config["lanes"])
    return require_access(int(config["vector"]), dtype) or require(
        32 <= threads <= 512, f"a block must have 32 to 512 threads; groups times lanes is {threads}"
    )


def _why_unfit(problem: GlobalAvgPool2d, config: Config, arch: Architecture) -> str | None:
    return require_whole_vectors(problem.c, int(config["vector"]))


def _cost(problem: GlobalAvgPool2d, config: Config, arch: Architecture) -> float:
    """Rank by dependent reads, those of a thread and those that add up the threads' sums, for each wave of blocks."""
    vector, groups, lanes = (int(config[name]) for name in ("vector", "groups", "lanes"))
    blocks = problem.n * ceil_div(problem.c, vector * groups)
    waves = ceil_div(blocks * groups * lanes, arch.processors * arch.sm_threads)
    return waves * (ceil_div(problem.h * problem.w, lanes) / 4 + lanes / 16 + 1) * float((8 / vector) ** 0.5)


FAMILY = Family[GlobalAvgPool2d](
    name="cuda_global_avg_pool2d",
    operator=GlobalAvgPool2d,
    kind=DEVICE_IMAGE,
    template="cuda/global_avg_pool2d.cu.j2",
    architectures=cuda_architectures(),
    dtypes=("f16", "bf16", "tf32", "f32", *BYTE_FORMATS),
    parameters=(
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("groups", (4, 8, 16, 32), "threads a block side by side, along the channels"),
        Parameter("lanes", (1, 2, 4, 8, 16, 32), "threads a block that share the pixels of a channel"),
    ),
    why_illegal=_why_illegal,
    why_unfit=_why_unfit,
    cost=_cost,
    compile_seconds=(0.9, 0.1),
)
