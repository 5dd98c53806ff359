"""NCHW to NHWC on a GPU."""

from __future__ import annotations

from autotune.core import Architecture, cuda_architectures
from autotune.families.base import DEVICE_IMAGE, Config, Parameter
from autotune.families.base import RecordFamily as Family
from autotune.families.cuda.rules import require_access
from autotune.families.rules import require
from autotune.ir import BYTE_FORMATS, Epilogue, ToChannelsLast


def _why_illegal(config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> str | None:
    return require_access(max(int(config["vector"]), int(config["pixels"])), dtype)


def _why_unfit(problem: ToChannelsLast, config: Config, arch: Architecture) -> str | None:
    vector, pixels = int(config["vector"]), int(config["pixels"])
    return require(problem.to % vector == 0, f"to must be a multiple of the vector, {vector}") or require(
        problem.h * problem.w % pixels == 0, f"the pixels of an image must be a multiple of a thread's, {pixels}"
    )


def _cost(problem: ToChannelsLast, config: Config, arch: Architecture) -> float:
    """Rank by accesses an element: a thread's reads and writes. With few pixels, those of neighbours are adjacent."""
    vector, pixels, threads = (int(config[name]) for name in ("vector", "pixels", "threads"))
    reads = min(vector, problem.c) / (vector * pixels)
    writes = 1 / vector * (1 + pixels / 4 + vector * pixels / problem.to / 8)
    return reads + writes + abs(threads - 128) / 1024


FAMILY = Family[ToChannelsLast](
    name="cuda_to_channels_last",
    operator=ToChannelsLast,
    kind=DEVICE_IMAGE,
    template="cuda/to_channels_last.cu.j2",
    architectures=cuda_architectures(),
    dtypes=("f16", "bf16", "tf32", "f32", *BYTE_FORMATS),
    parameters=(
        Parameter("vector", (1, 2, 4, 8, 16), "output channels a thread"),
        Parameter("pixels", (1, 2, 4, 8), "neighbouring pixels a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    ),
    why_illegal=_why_illegal,
    why_unfit=_why_unfit,
    cost=_cost,
    compile_seconds=(0.9, 0.1),
)
