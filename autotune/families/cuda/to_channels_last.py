"""NCHW to NHWC on a GPU."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families import cuda_shared
from autotune.families.base import DEVICE_IMAGE, Config, Family, Parameter
from autotune.ir import Epilogue, Problem, ToChannelsLast


def _legal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return cuda_shared.too_wide(max(int(config["vector"]), int(config["pixels"])), dtype)


def _fits(problem: Problem, config: Config, arch: Architecture) -> str | None:
    assert isinstance(problem, ToChannelsLast)
    if problem.to % int(config["vector"]):
        return "to must be a multiple of the vector"
    return (
        "the pixels of an image must be a multiple of a thread's"
        if problem.h * problem.w % int(config["pixels"])
        else None
    )


def _cost(problem: Problem, config: Config, arch: Architecture) -> float:
    """Accesses for each element: a thread's reads and writes; those of neighbours lie side by side with few pixels."""
    assert isinstance(problem, ToChannelsLast)
    vector, pixels, threads = (int(config[name]) for name in ("vector", "pixels", "threads"))
    reads = min(vector, problem.c) / (vector * pixels)
    writes = 1 / vector * (1 + pixels / 4 + vector * pixels / problem.to / 8)
    return reads + writes + abs(threads - 128) / 1024


FAMILY = Family(
    name="cuda_to_channels_last",
    operator=ToChannelsLast,
    kind=DEVICE_IMAGE,
    template="cuda/to_channels_last.cu.j2",
    architectures=cuda_shared.ARCHITECTURES,
    dtypes=("f16", "bf16", "tf32", "f32", "s8"),
    parameters=(
        Parameter("vector", (1, 2, 4, 8, 16), "output channels a thread"),
        Parameter("pixels", (1, 2, 4, 8), "neighbouring pixels a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    legal=_legal,
    fits=_fits,
    cost=_cost,
    compile_seconds=(0.9, 0.1),
)
