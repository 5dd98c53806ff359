"""The mean of each image on a GPU, channels last."""

from __future__ import annotations

from autotune.core import Architecture, ceil_div
from autotune.families import cuda_shared
from autotune.families.base import DEVICE_IMAGE, Config, Family, Parameter
from autotune.ir import Epilogue, GlobalAvgPool2d, Problem


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    threads = int(config["groups"]) * int(config["lanes"])
    few_or_many = None if 32 <= threads <= 512 else "32 to 512 threads a block"
    return cuda_shared.too_wide(int(config["vector"]), dtype) or few_or_many


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, GlobalAvgPool2d)
    return cuda_shared.odd(problem.c, int(config["vector"]))


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Reads one after the other: those of a thread, and those of its sums, for each wave of blocks."""
    assert isinstance(problem, GlobalAvgPool2d)
    vector, groups, lanes = (int(config[name]) for name in ("vector", "groups", "lanes"))
    blocks = problem.n * ceil_div(problem.c, vector * groups)
    waves = ceil_div(blocks * groups * lanes, arch.processors * arch.sm_threads)
    return waves * (ceil_div(problem.h * problem.w, lanes) / 4 + lanes / 16 + 1) * (8 / vector) ** 0.5


FAMILY = Family(
    name="cuda_global_avg_pool2d",
    operator=GlobalAvgPool2d,
    kind=DEVICE_IMAGE,
    template="cuda/global_avg_pool2d.cu.j2",
    architectures=cuda_shared.ARCHITECTURES,
    dtypes=("f16", "bf16", "tf32", "f32", "s8"),
    parameters=(
        Parameter("vector", (1, 2, 4, 8), "channels a thread"),
        Parameter("groups", (4, 8, 16, 32), "threads a block side by side, along the channels"),
        Parameter("lanes", (1, 2, 4, 8, 16, 32), "threads a block that share the pixels of a channel"),
    ),
    legal=_legal,
    fits=_fits,
    cost=_cost,
    compile_seconds=(0.9, 0.1),
)
