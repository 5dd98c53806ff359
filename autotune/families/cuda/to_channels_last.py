"""NCHW to NHWC on a GPU."""

from __future__ import annotations

from autotune.core import Architecture
from autotune.families.base import Config, Parameter, Rules, require
from autotune.families.cuda.common import WITH_BYTES, CudaFamily
from autotune.families.cuda.rules import require_access
from autotune.ir import Epilogue
from autotune.ir.operators import ToChannelsLast


class CudaToChannelsLast(CudaFamily[ToChannelsLast]):
    """NCHW to NHWC: a thread moves some channels of neighbouring pixels."""

    name = "cuda_to_channels_last"
    operator = ToChannelsLast
    template = "cuda/to_channels_last.cu.j2"
    dtypes = WITH_BYTES
    parameters = (
        Parameter("vector", (1, 2, 4, 8, 16), "output channels a thread"),
        Parameter("pixels", (1, 2, 4, 8), "neighbouring pixels a thread"),
        Parameter("threads", (64, 128, 256), "threads a block"),
    )

    def illegal(self, config: Config, arch: Architecture, dtype: str, epilogue: Epilogue) -> Rules:
        yield require_access(max(int(config["vector"]), int(config["pixels"])), dtype)

    def unfit(self, problem: ToChannelsLast, config: Config, arch: Architecture) -> Rules:
        vector, pixels = int(config["vector"]), int(config["pixels"])
        yield require(problem.to % vector == 0, f"to must be a multiple of the vector, {vector}")
        yield require(
            problem.h * problem.w % pixels == 0, f"the pixels of an image must be a multiple of a thread's, {pixels}"
        )

    def cost(self, problem: ToChannelsLast, config: Config, arch: Architecture) -> float:
        """Rank by a thread's reads and writes an element. With few pixels, those of neighbours are adjacent."""
        vector, pixels, threads = (int(config[name]) for name in ("vector", "pixels", "threads"))
        reads = min(vector, problem.c) / (vector * pixels)
        writes = 1 / vector * (1 + pixels / 4 + vector * pixels / problem.to / 8)
        return reads + writes + abs(threads - 128) / 1024


FAMILIES = (CudaToChannelsLast(),)
